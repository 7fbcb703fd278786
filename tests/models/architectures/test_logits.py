"""Logits in float32 of every architecture, against transformers, or against a model's own code.

cases.py has the architectures; built.py has what is compiled and compared.
"""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers
from built import DENSE
from cases import CASES
from compared import Built

from mxc.artifact.manifest import REPORT
from mxc.compiler.report.lowering import UNLISTED

Builds = Callable[[str], Built]

each = pytest.mark.parametrize("name", CASES)


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
    """Two sequences, fed in pieces, then decoded together."""
    found, starts = built(name), (3, 20)
    sequences = [found.model.sequence() for _ in starts]
    for sequence, start in zip(sequences, starts, strict=True):
        for first, last in ((0, start // 2), (start // 2, start)):
            found.check(sequence.feed(found.tokens[first:last]), slice(first, last))
    batch = found.model.batch()
    for step in range(4):
        places = [start + step for start in starts]
        rows = batch.feed(sequences, [found.tokens[place] for place in places])
        found.check(rows, places)


@each
def test_fork(name: str, built: Builds) -> None:
    """Both go on as one would, past the window, in decode and over prompts; each has pages and
    states of its own."""
    found = built(name)
    sequence, other, again = (found.model.sequence() for _ in range(3))
    sequence.feed(found.tokens[:13])
    other = sequence.fork()
    other.feed([5, 4, 3])
    for first, last in ((13, 14), (14, len(found.tokens))):
        found.check(sequence.feed(found.tokens[first:last]), slice(first, last))
    again.feed([*found.tokens[:13], 5, 4, 3])
    assert np.array_equal(other.feed([7]), again.feed([7]))


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
    oracle = built(name).oracle
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
        ("deepseek_v3", [(2, 64, 1, 64 + 32)], [None]),
        # Layers that read the keys and values of others have no entries.
        ("gemma4_text, borrows", [(4, 64, 2, 32), (2, 64, 2, 64)], [6, None]),
        ("gemma4_text, experts", [(2, 64, 4, 32), (2, 64, 2, 64)], [6, None]),
        ("gemma4_unified_text", [(2, 64, 2, 256), (2, 64, 1, 512)], [6, None]),
        ("kimi_k3", [(2, 64, 1, 64 + 32)], [None]),
        # One layer has keys and values, the others keep states.
        ("kimi_linear", [(1, 64, 1, 64 + 32)], [None]),
        ("qwen3_5", [(2, 64, 2, 32)], [None]),
        ("qwen3_next", [(2, 64, 2, 32)], [None]),
    ],
)
def test_each_kind_of_layers_has_pages_of_its_own(
    name: str, pages: list[tuple[int, ...]], windows: list[int | None], built: Builds
) -> None:
    model = built(name).model.manifest.model
    assert [page.shape for page in model.pages] == pages
    assert [page.window for page in model.pages] == windows
    assert model.bytes_per_token == sum(4 * each * heads * depth for each, _, heads, depth in pages)


#: Layers with states, columns of the convolution, and the shape of a state.
_QWEN = (1, 2 * 32 + 128, 4, 16, 32)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("kimi_k3", (3, 3 * 128, 4, 32, 32)),
        ("kimi_linear", (2, 3 * 128, 4, 32, 32)),
        ("qwen3_5", _QWEN),
        ("qwen3_next", _QWEN),
    ],
)
def test_states_are_those_of_the_manifest(name: str, sizes: tuple[int, ...], built: Builds) -> None:
    """A reset forgets them."""
    found, (layers, columns, *state) = built(name), sizes
    model = found.model.manifest.model
    assert {key: kept.shape for key, kept in model.states.items()} == {
        "convolution": (layers, 3, columns),
        "delta_rule": (layers, *state),
    }
    assert model.bytes_per_sequence == 4 * layers * (3 * columns + math.prod(state))
    sequence = found.model.sequence()
    sequence.feed(found.tokens[:9])
    sequence.reset()
    found.check(sequence.feed(found.tokens))
