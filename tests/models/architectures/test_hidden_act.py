"""The activation that a config names is that of every part that transformers takes it for."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers as t

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.gates import gelu, gelu_erf, silu, swish
from mxc.errors import CheckpointError
from tests.models.architectures.built import check_logits
from tests.models.architectures.dense_cases import FOUR_EXPERTS, LINEAR, SEES_ALL, TWO
from tests.models.architectures.test_defaults import CONFIGS, record, stated

#: Refused with another activation than SiLU.
_ALWAYS_SILU = {
    "flex_olmo", "gpt_oss", "kimi_linear", "lfm2", "lfm2_moe", "minimax_m2", "mixtral", "olmoe",
}  # fmt: skip


def activations(part: Any) -> Iterator[Any]:
    """Every activation in a record of blocks."""
    if dataclasses.is_dataclass(part):
        for each in dataclasses.fields(part):
            yield from activations(getattr(part, each.name))
    elif isinstance(part, tuple | list):
        for one in part:
            yield from activations(one)
    elif callable(part):
        yield part


@pytest.mark.parametrize("name", CONFIGS)
def test_no_part_keeps_another_activation(name: str) -> None:
    raw = stated(CONFIGS[name])
    field = "hidden_activation" if "hidden_activation" in raw else "hidden_act"
    found = record(raw | {field: "gelu"})
    assert (found is None) == (name in _ALWAYS_SILU)
    assert found is None or {*activations(found)} <= {gelu, gelu_erf}
    other = record(raw | {field: "silu"})
    assert other is not None
    assert {*activations(other)} <= {silu, swish} or name in ("gpt_oss", "cohere2")


@pytest.mark.parametrize("name", sorted(_ALWAYS_SILU - {"gpt_oss"}))
def test_refused(name: str) -> None:
    said = "config.json: hidden_act 'gelu' is not supported; supported: 'silu'"
    with pytest.raises(CheckpointError, match=said):
        read_decoder(stated(CONFIGS[name]) | {"hidden_act": "gelu"}, "config.json")


_SMALL: dict[str, Any] = TWO | {"hidden_size": 64, "intermediate_size": 64, "hidden_act": "gelu"}
#: Experts, a shared one, and both kinds of layers with a convolution.
MODELS: dict[str, Any] = {
    "granitemoehybrid": t.GraniteMoeHybridConfig(
        **_SMALL,
        **FOUR_EXPERTS,
        layer_types=[LINEAR, SEES_ALL],
        shared_intermediate_size=64,
        mamba_n_heads=4,
        mamba_d_state=32,
    ),
    "qwen3_next": t.Qwen3NextConfig(
        **_SMALL,
        head_dim=32,
        layer_types=[LINEAR, SEES_ALL],
        linear_key_head_dim=16,
        linear_value_head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    check_logits(tmp_path, MODELS[name])
