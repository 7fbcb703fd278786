"""Which layers a config excludes, in each of the syntaxes and spellings that are written."""

import time

import pytest
from transformers.quantizers.quantizers_utils import should_convert_module

from mxc.compiler.checkpoints.layers.quantization import (
    CheckpointQuantization,
    Rule,
    Scheme,
    Syntax,
    excluding,
)
from mxc.errors import CheckpointError

PLAIN = Scheme(format="mxfp4")


@pytest.mark.parametrize(
    ("syntax", "pattern", "inside", "outside"),
    [
        (Syntax.REGEX, "lm_head", ["lm_head"], ["model.lm_heads", "x.lm_head"]),
        (Syntax.REGEX, r"re:.*layers\.1\..*", ["model.layers.1.mlp.up_proj"], ["m.layers.11.mlp"]),
        (Syntax.GLOB, "*self_attn*", ["model.layers.3.self_attn.q_proj"], ["model.layers.3.mlp"]),
        (Syntax.GLOB, "model.layers.0", ["model.layers.0"], ["model.layers.0.mlp.up_proj"]),
        (Syntax.PREFIX, "model.layers.*.self_attn", ["model.layers.7.self_attn.q_proj"],
         ["model.layers.7.self_attention.q_proj"]),
        (Syntax.PREFIX, "lm_head", ["lm_head", "language_model.lm_head"], ["lm_head2"]),
        # A wrapper's prefix that the tensors lack, and one that the config lacks.
        (Syntax.GLOB, "language_model.model.layers.0.mlp.gate", ["model.layers.0.mlp.gate"],
         ["model.layers.1.mlp.gate"]),
        (Syntax.REGEX, "model.layers.0.mlp.up_proj",
         ["model.language_model.layers.0.mlp.up_proj"], ["model.layers.0.mlp.down_proj"]),
        # Names before and after layers were fused.
        (Syntax.GLOB, "model.layers.0.self_attn.qkv_proj", ["model.layers.0.self_attn.k_proj"],
         ["model.layers.0.self_attn.o_proj"]),
        (Syntax.REGEX, "model.layers.0.mlp.gate_up_proj", ["model.layers.0.mlp.up_proj"],
         ["model.layers.0.mlp.down_proj"]),
    ],
)  # fmt: skip
def test_exclusions(syntax: Syntax, pattern: str, inside: list[str], outside: list[str]) -> None:
    declared = CheckpointQuantization(default=PLAIN, rules=excluding([pattern], syntax))
    assert [declared.scheme(name) for name in inside] == [None] * len(inside)
    assert [declared.scheme(name) for name in outside] == [PLAIN] * len(outside)


@pytest.mark.parametrize("pattern", ["model.layers.*.self_attn", "lm_head", "model.layers.1"])
def test_prefixes_as_transformers_has_them(pattern: str) -> None:
    names = ("lm_head", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj",
             "model.layers.11.mlp.up_proj", "model.layers.11.self_attn.o_proj")  # fmt: skip
    declared = CheckpointQuantization(default=PLAIN, rules=excluding([pattern], Syntax.PREFIX))
    for name in names:
        assert (declared.scheme(name) is PLAIN) == should_convert_module(name, [pattern])


def test_many_stars_take_no_time() -> None:
    declared = CheckpointQuantization(
        default=PLAIN,
        rules=excluding(["a*" * 40 + "b"], Syntax.PREFIX)
        + excluding(["a*" * 40 + "b"], Syntax.GLOB),
    )
    start = time.process_time()
    assert declared.scheme("a" * 200 + ".c") is PLAIN
    assert time.process_time() - start < 2


def test_a_fused_layer_has_the_scheme_of_its_parts() -> None:
    stem = "model.layers.0.self_attn"

    def rules(*excluded: str) -> CheckpointQuantization:
        return CheckpointQuantization(
            default=PLAIN,
            rules=tuple(
                Rule(pattern=f"{stem}.{n}", syntax=Syntax.REGEX, scheme=None) for n in excluded
            ),
        )

    assert rules("q_proj", "k_proj", "v_proj").scheme(f"{stem}.qkv_proj") is None
    assert rules().scheme(f"{stem}.qkv_proj") is PLAIN
    with pytest.raises(CheckpointError, match=r"some of the parts of .*qkv_proj \(q_proj, k_proj"):
        rules("q_proj").scheme(f"{stem}.qkv_proj")


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:(", "re:" + "a" * 2000, "re:" + ".*a" * 9])
def test_patterns_that_are_not_tried(pattern: str) -> None:
    declared = CheckpointQuantization(default=PLAIN, rules=excluding([pattern], Syntax.REGEX))
    with pytest.raises(CheckpointError, match="quantization config has the pattern"):
        declared.scheme("a" * 40 + "b")
