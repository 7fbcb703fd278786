"""Logits in float32 of Gemma 4, against transformers: heads, pages and norms that differ by layer.

conftest.py has the way of a case.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as t

from mxc.compiler.models.architectures import read_decoder
from mxc.errors import CheckpointError

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 6,
    "final_logit_softcapping": 3.0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e3,
            "factor": 1.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
    },
}
SLIDES, SEES_ALL = "sliding_attention", "full_attention"

ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")
OF_LAYERS = dict.fromkeys(
    ("per_layer_model_projection", "per_layer_input_gate", "per_layer_projection"), "mxfp8e4m3"
)

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    # The last two layers read the keys and values of the two before, not of the first two, and have
    # wider MLPs.
    "borrows": (
        t.Gemma4TextConfig(
            **SMALL,
            num_hidden_layers=6,
            layer_types=[SLIDES, SEES_ALL] * 3,
            vocab_size_per_layer_input=150,
            hidden_size_per_layer_input=32,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
        ),
        torch.bfloat16,
        MLP | OF_LAYERS,
    ),
    # Full layers have one head of keys, which are its values too; each layer has experts.
    "experts": (
        t.Gemma4TextConfig(
            **SMALL,
            num_hidden_layers=2,
            layer_types=[SLIDES, SEES_ALL],
            hidden_size_per_layer_input=0,
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=32,
            attention_bias=True,
        ),
        torch.bfloat16,
        MLP | ATTENTION,
    ),
    # Heads of the published sizes.
    "unified": (
        t.Gemma4UnifiedTextConfig(
            **SMALL | {"head_dim": 256, "global_head_dim": 512},
            num_hidden_layers=2,
            layer_types=[SLIDES, SEES_ALL],
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        ),
        torch.bfloat16,
        MLP | dict.fromkeys(ATTENTION, "nvfp4"),
    ),
}

each = pytest.mark.parametrize("name", CASES)


@each
def test_prompt(name: str, built: Built) -> None:
    built(name).check_prompt()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@each
def test_greedy(name: str, built: Built) -> None:
    built(name).check_greedy()


@each
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()


@each
def test_fork(name: str, built: Built) -> None:
    """Both go on as one would, past the window, whichever is fed first."""
    found = built(name)
    sequence = found.model.sequence()
    sequence.feed(found.tokens[:9])
    other = sequence.fork()
    other.feed(found.tokens[:9][::-1])
    rows = sequence.feed(found.tokens[9:])
    assert found.deviation(rows, slice(9, None)) <= found.tolerance


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("borrows", [(4, 64, 2, 32), (4, 64, 2, 64)]),
        ("experts", [(2, 64, 2, 32), (2, 64, 1, 64)]),
        ("unified", [(2, 64, 2, 256), (2, 64, 1, 512)]),
    ],
)
def test_each_kind_of_layers_has_pages_of_its_own_row(
    name: str, pages: list[tuple[int, ...]], built: Built
) -> None:
    """Layers that read the keys and values of others have no entries."""
    model = built(name).model.manifest.model
    assert [page.shape for page in model.pages] == pages
    assert [page.window for page in model.pages] == [6, None]
    assert model.bytes_per_token == sum(4 * each * heads * depth for each, _, heads, depth in pages)


def _config(**fields: Any) -> dict[str, Any]:
    """As published, of 12 layers: what is saved again has `per_layer_config`."""
    kinds = [SLIDES] * 5 + [SEES_ALL]
    config = SMALL | {"model_type": "gemma4_text", "num_hidden_layers": 12, "rms_norm_eps": 1e-6}
    config |= {"layer_types": 2 * kinds, "vocab_size_per_layer_input": 139}
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
        ({"vocab_size_per_layer_input": 100}, "at least the 139 of vocab_size"),
        ({"per_layer_config": {"5": {"sliding_window": 3}}}, "for per_layer_config"),
        ({"per_layer_config": {"12": {"head_dim": 64}}}, "for per_layer_config"),
        ({"per_layer_config": {"full_attention": {"head_dim": 64}}}, "field full_attention"),
        ({"enable_moe_block": True}, "num_experts is missing|moe_intermediate_size is missing"),
    ],
)
def test_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_decoder(_config(**fields), "config.json")
