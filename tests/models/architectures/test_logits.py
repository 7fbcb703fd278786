"""Logits in float32 of architectures, against transformers, or against a model's own code.

cases.py has the architectures; built.py has what is compiled and compared. test_published.py and
test_published_further.py check the same of the others.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from mxc.artifact.manifest import REPORT
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.report.lowering import UNLISTED
from tests.models.architectures.built import DENSE
from tests.models.architectures.cases import ALONE, CASES
from tests.models.compared import Built

Builds = Callable[[str], Built]

each = pytest.mark.parametrize("name", ALONE)


@each
def test_decode(name: str, built: Builds) -> None:
    """Token by token, past a page; each token that is generated is the one that they choose."""
    found = built(name)
    found.check_generated()


@each
def test_prompt(name: str, built: Builds) -> None:
    """All tokens in one call, to the last position."""
    found = built(name)
    found.check(found.model.sequence().feed(found.tokens))


@each
def test_odd_cuts_and_decoded_together(name: str, built: Builds) -> None:
    built(name).check_cut()


@each
def test_fork(name: str, built: Builds) -> None:
    built(name).check_fork()


@each
def test_weights_are_read_as_they_are(name: str, built: Builds) -> None:
    """Each in its format, by a kernel of ours; of f16 there is none."""
    report = json.loads((built(name).artifact / REPORT).read_text())
    assert report["kernels"] == []
    rows = report["matmuls"]
    case = CASES[name]
    plain = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[case.dtype]
    found = {row["rhs"] for row in rows}
    formats = {*case.formats.values(), *([DENSE] if case.dense else [])}
    assert formats <= found <= {*formats, plain}
    others = [row for row in rows if not row["kernel"].startswith("mxc_")]
    assert {row["rhs"] for row in others} <= {"f16"}
    own = {row["fallback"] for row in rows if row not in others}
    assert own == {UNLISTED}, "of its instructions nothing is known"


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_library_reads_the_same_weights(name: str, built: Builds) -> None:
    """compressed-tensors dequantizes the checkpoint to the values of the reference."""
    oracle: Any = built(name).oracle
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        oracle.checkpoint,
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )
    found = dict(theirs.named_parameters())
    assert oracle.values.keys() == found.keys()
    assert [key for key in found if not torch.equal(found[key], oracle.values[key])] == []


@pytest.mark.parametrize(
    ("name", "pages", "windows"),
    [
        # Of latent attention one row a token, whatever the number of heads.
        ("mistral4", [(2, 64, 1, 64 + 32)], [None]),
        # Layers that read the keys and values of others have no entries.
        ("gemma4_text, borrows", [(4, 64, 2, 32), (2, 64, 2, 64)], [8, None]),
        ("gemma4_text, experts", [(2, 64, 4, 32), (2, 64, 2, 64)], [8, None]),
        ("gemma4_unified_text", [(2, 64, 2, 256), (2, 64, 1, 512)], [8, None]),
        # One layer has keys and values, the others keep states.
        ("kimi_linear", [(1, 64, 1, 64 + 32)], [None]),
        ("qwen3_next", [(2, 64, 2, 32)], [None]),
    ],
)
def test_each_kind_of_layers_has_pages_of_its_own(
    name: str, pages: list[tuple[int, ...]], windows: list[int | None]
) -> None:
    found = read_decoder(json.loads(CASES[name].config.to_json_string()), "config.json")
    assert [page.shape for page in found.pages] == pages
    assert [page.window for page in found.pages] == windows


@pytest.mark.parametrize(
    ("name", "convolution", "states"),
    [
        ("granitemoehybrid", (2, 3, 256 + 2 * 32), (2, 4, 32, 64)),
        ("kimi_k3", (3, 3, 3 * 128), (3, 4, 32, 32)),
    ],
)
def test_bytes_of_a_sequence_are_those_of_the_manifest(
    name: str, convolution: tuple[int, ...], states: tuple[int, ...], built: Builds
) -> None:
    model = built(name).model.manifest.model
    assert model is not None
    assert {key: kept.shape for key, kept in model.states.items()} == {
        "convolution": convolution,
        "delta_rule": states,
    }
    assert model.bytes_per_sequence == 4 * (math.prod(convolution) + math.prod(states))
    assert model.bytes_per_token == sum(
        4 * layers * heads * depth
        for layers, _, heads, depth in (each.shape for each in model.pages)
    )
