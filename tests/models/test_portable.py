"""A model for older CPUs of the architecture beside the same model for this machine.

Each has kernels of ours, for its instruction set, of the head too, which is the embedding.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from mxc.runtime.machine import architecture
from tests.models.conftest import Compiled

#: CPUs whose instructions this one has, whatever it is: the oldest first.
OLDER = {"x86_64": ("cpu:x86-64", "cpu:x86-64-v3"), "aarch64": ("cpu:generic",)}[architecture()]

#: As in test_logits.py, of the root mean square of all logits.
TOLERANCE = 2e-5

CASE: dict[str, Any] = {
    "options": GptOssOptions(
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=1,
        num_local_experts=5,
        num_experts_per_tok=3,
        vocab_size=139,
        tie_word_embeddings=True,
    ),
    "length": 21,
    "activations": "f32",
}


@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("case", [CASE], ids=["tied"])
def test_logits_are_those_of_the_model_for_this_machine(
    case: dict[str, Any], older: str, compiled: Callable[[dict[str, Any]], Compiled], tmp_path: Path
) -> None:
    here = compiled(case)
    mxc.compile(
        here.checkpoint,
        older,
        tmp_path / "portable.mxc",
        activations=case["activations"],
        max_sequence_length=case["length"],
        listing=False,
    )
    size = np.sqrt(np.mean(here.wanted**2))
    artifacts = {"here": here.artifact, "portable": tmp_path / "portable.mxc"}
    rows = {}
    for name, artifact in artifacts.items():
        prefill, decode = mxc.load(artifact).sequence(), mxc.load(artifact).sequence()
        found = [prefill.feed(here.tokens), *(decode.feed([token]) for token in here.tokens)]
        rows[name] = np.concatenate(found)
        wanted = np.concatenate([here.wanted, here.wanted])
        assert np.abs(rows[name] - wanted).max() <= TOLERANCE * size, name
    assert np.abs(rows["here"] - rows["portable"]).max() <= 2 * TOLERANCE * size


@pytest.mark.parametrize("case", [CASE], ids=["tied"])
def test_kernels_of_ours_are_everywhere(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """The head is the embedding: its rows are looked up where the kernel reads them."""
    here = compiled(case)
    matmuls = json.loads((here.artifact / REPORT).read_text())["matmuls"]
    heads = [row for row in matmuls if row["n"] == case["options"].vocab_size]
    assert [row["rhs"] for row in heads] == ["bf16"]
    assert not [row for row in matmuls if not row["kernel"].startswith("mxc_")]


@pytest.mark.parametrize("case", [{**CASE, "activations": "bf16"}], ids=["bf16"])
def test_bf16_is_rounded_without_its_instructions_too(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled], tmp_path: Path
) -> None:
    """A rounding that is left out shows in nothing but the numbers.

    Sums differ in order alone. One that comes out on the other side of a rounding to bf16 moves
    all that follows by up to 2^-8 of its size: in texts of one token few do, most agree as in f32
    (test_activations.py derives both). Without a rounding every token is off.
    """
    here = compiled(case)
    mxc.compile(
        here.checkpoint,
        OLDER[-1],
        tmp_path / "portable.mxc",
        activations="bf16",
        max_sequence_length=case["length"],
        listing=False,
    )
    rows = []
    for artifact in (here.artifact, tmp_path / "portable.mxc"):
        model = mxc.load(artifact)
        rows.append(np.concatenate([model.sequence().feed([token]) for token in here.tokens]))
    off = np.abs(rows[0] - rows[1]).max(axis=1) / np.sqrt(np.mean(here.wanted**2))
    assert np.mean(off <= TOLERANCE) >= 0.7
    assert off.max() <= 2**-5
