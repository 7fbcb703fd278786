"""Heads of which a part is rotated: an odd number of elements, and numbers that are given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as t

from mxc.compiler.convert.gguf_metadata import say
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.rope import Rope, frequencies, part_of
from mxc.compiler.models.configs.gguf import transformers_config
from mxc.errors import CheckpointError
from tests.models.architectures.built import check_logits
from tests.models.architectures.dense_cases import ONE, PLAIN_ROPE, YARN
from tests.models.architectures.test_defaults import stated

_SMALL = ONE | {"hidden_size": 64, "intermediate_size": 64}


#: The head of a GGUF is a tensor of its own.
_TENSORS = ("lm_head.weight",)


def _of(part: float) -> dict[str, Any]:
    return {"rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": part}}


ODD: dict[str, Any] = {
    # 5 of 20 elements, whose pairs alternate.
    "glm4": t.Glm4Config(**_SMALL, head_dim=20, attention_bias=False, **_of(0.25)),
    # 5 of 16.
    "phi3": t.Phi3Config(**_SMALL, **_of(0.32)),
}
MINIMAX: dict[str, Any] = _SMALL | {"num_local_experts": 3, "num_experts_per_tok": 2}


@pytest.mark.parametrize("name", ODD)
def test_logits_of_an_odd_number(name: str, tmp_path: Path) -> None:
    check_logits(tmp_path, ODD[name])


@pytest.mark.parametrize(("depth", "part", "spread"), [(16, 0.32, 5), (20, 0.25, 5), (20, 0.3, 6)])
def test_frequencies_are_those_of_transformers(depth: int, part: float, spread: int) -> None:
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    config = t.Phi3Config(hidden_size=4 * depth, num_attention_heads=4, **_of(part))
    theirs = Phi3RotaryEmbedding(config).inv_freq
    rope = Rope(theta=1e4, fraction=part)
    assert (rope.spread(depth), rope.rotated(depth)) == (spread, 2 * len(theirs))
    np.testing.assert_allclose(frequencies(rope, spread), theirs.numpy(), rtol=3e-7)


def test_a_number_that_is_given_is_kept() -> None:
    for depth in range(2, 257, 2):
        found = [Rope(theta=1e4, fraction=part_of(n, depth)).spread(depth) for n in range(1, depth)]
        assert found == list(range(1, depth))
    for number, rotated in ((60, 60), (7, 8)):
        config = t.MiniMaxM2Config(**MINIMAX, head_dim=88, rotary_dim=number)
        raw = stated(config)
        for given in (raw, {key: raw[key] for key in raw if key != "rope_parameters"}):
            rope = read_decoder(given | {"rotary_dim": number}, "config.json").ropes[0]
            assert (rope.spread(88), rope.rotated(88)) == (number, rotated)


def test_yarn_of_an_odd_number_and_nothing_rotated() -> None:
    """transformers fails with the one, and rotates nothing with the other."""
    raw = stated(ODD["phi3"])
    rope = YARN | {"partial_rotary_factor": 0.32}
    said = "wanted an even number of rotated elements of a head, of 16, with yarn .* found '5 "
    with pytest.raises(CheckpointError, match=said):
        read_decoder(raw | {"rope_parameters": rope}, "config.json")
    with pytest.raises(CheckpointError, match="wanted a part that has an element of a head"):
        read_decoder(raw | _of(0.05), "config.json")


def test_gguf() -> None:
    """The number of a file is kept, through the config that transformers reads; an odd one is
    refused."""
    shape = {"hidden_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2}
    raw = stated(t.Phi3Config(**_SMALL | shape, **_of(60.5 / 88)))
    written = dict(say(raw, _TENSORS, "model").metadata)
    assert written["phi3.rope.dimension_count"] == 60
    back = transformers_config(written, _TENSORS, "m.gguf")
    assert int(88 * back["partial_rotary_factor"]) == 60
    said = r"m.gguf: rope\.dimension_count is 5; wanted an even number"
    with pytest.raises(CheckpointError, match=said):
        transformers_config(written | {"phi3.rope.dimension_count": 5}, _TENSORS, "m.gguf")
    with pytest.raises(CheckpointError, match=said.replace("m.gguf", "model")):
        say(stated(ODD["phi3"]), _TENSORS, "model")


@pytest.mark.parametrize(
    ("config", "depth"),
    [
        (t.LlamaConfig(**_SMALL | {"hidden_size": 96}), 24),
        (t.Phi3Config(**_SMALL | {"hidden_size": 96}), 24),
        (t.Qwen3Config(**_SMALL, head_dim=40), 40),
    ],
)
def test_gguf_has_the_size_of_heads_not_of_their_rows_in_the_cache(config: Any, depth: int) -> None:
    written = say(stated(config), _TENSORS, "model").metadata
    kind = written["general.architecture"]
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    assert [written[f"{kind}.{key}"] for key in keys] == 3 * [depth]
