"""Which layers of dots.llm1 slide, and the least sum of the shares of ERNIE's experts."""

from pathlib import Path
from typing import Any

import pytest
import transformers as t

from mxc.compiler.models.architectures import read_decoder
from mxc.errors import CheckpointError
from tests.models.architectures.built import check_logits
from tests.models.architectures.dense_cases import SEES_ALL, SLIDES, TWO
from tests.models.architectures.test_defaults import CONFIGS, stated

_SMALL: dict[str, Any] = TWO | {"hidden_size": 64, "intermediate_size": 64}
_DOTS = t.Dots1Config(
    **_SMALL,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    n_shared_experts=1,
    first_k_dense_replace=1,
    sliding_window=8,
    max_window_layers=1,
)


def _windows(raw: dict[str, Any]) -> list[Any]:
    return [each and each.window for each in read_decoder(raw, "config.json").attentions]


def test_windows_of_dots() -> None:
    raw = stated(_DOTS)
    assert raw["layer_types"] == [SEES_ALL, SLIDES]
    older = {key: value for key, value in raw.items() if key != "layer_types"}
    assert _windows(raw) == _windows(older) == [None, 8]
    assert _windows(older | {"max_window_layers": 0}) == [8, 8]
    assert _windows(older | {"max_window_layers": 2}) == [None, None]
    assert _windows(older | {"sliding_window": None}) == [None, None]
    assert _windows(raw | {"layer_types": [SLIDES, SEES_ALL]}) == [8, None]
    said = r"wanted a list of 2 times full_attention \(sliding_window is null\) for layer_types"
    with pytest.raises(CheckpointError, match=said):
        read_decoder(raw | {"sliding_window": None}, "config.json")


def test_logits_of_dots(tmp_path: Path) -> None:
    check_logits(tmp_path, _DOTS)


def test_logits_of_shares_that_do_not_add_up_to_one(tmp_path: Path) -> None:
    config = t.Ernie4_5_MoeConfig(
        **_SMALL, moe_intermediate_size=32, moe_k=2, moe_num_experts=4, moe_norm_min=0.9
    )
    check_logits(tmp_path, config)


def test_a_least_sum_that_is_none() -> None:
    raw = stated(CONFIGS["ernie4_5_moe"])
    said = "wanted a positive number for moe_norm_min, found 0"
    with pytest.raises(CheckpointError, match=said):
        read_decoder(raw | {"moe_norm_min": 0}, "config.json")
