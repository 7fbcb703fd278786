"""Configs of Gemma 4: as published and as transformers saves them, and what is refused."""

import json
from typing import Any

import pytest
import transformers as t

from mxc.compiler.models.architectures import read_decoder
from mxc.errors import CheckpointError
from tests.models.architectures.cases import GEMMA4
from tests.models.architectures.dense_cases import SEES_ALL, SLIDES


def _config(**fields: Any) -> dict[str, Any]:
    """As published, of 12 layers: what is saved again has `per_layer_config`."""
    kinds = [SLIDES] * 5 + [SEES_ALL]
    config = GEMMA4 | {"model_type": "gemma4_text", "num_hidden_layers": 12, "rms_norm_eps": 1e-6}
    config |= {"layer_types": 2 * kinds, "vocab_size_per_layer_input": 144}
    return config | {"attention_k_eq_v": True, "num_global_key_value_heads": 1} | fields


def test_published_and_saved_configs_are_the_same() -> None:
    saved = json.loads(t.Gemma4TextConfig(**_config()).to_json_string())
    assert sorted(saved["per_layer_config"]) == ["05", "11"]
    found = read_decoder(saved, "config.json")
    assert found == read_decoder(_config(), "config.json")
    assert [kind.shape for kind in found.pages] == [(20, 64, 2, 32), (4, 64, 1, 64)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers, found 7"),
        ({"num_kv_shared_layers": 13}, "num_kv_shared_layers, found 13"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not"),
        ({"rope_parameters": None}, "rope_parameters, found None"),
        ({"vocab_size_per_layer_input": 100}, "at least the 144 of vocab_size"),
        ({"per_layer_config": {"5": {"sliding_window": 3}}}, "for per_layer_config"),
        ({"per_layer_config": {"12": {"head_dim": 64}}}, "for per_layer_config"),
        ({"per_layer_config": {"full_attention": {"head_dim": 64}}}, "field full_attention"),
        ({"enable_moe_block": True}, "num_experts is missing|moe_intermediate_size is missing"),
    ],
)
def test_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_decoder(_config(**fields), "config.json")
