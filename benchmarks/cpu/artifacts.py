"""Run mxc as users do: a random checkpoint, `mxc compile`, `mxc bench`, in separate processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import MANIFEST, REPORT
from mxc.formats.formats import FORMATS

#: Part of the name of the embedding, of which a token reads one row.
_EMBEDDING = "embed_tokens"

_PLAIN_BITS = {"bf16": 16, "f16": 16, "f32": 32}


@dataclass(frozen=True)
class Built:
    """An artifact.

    `packing_seconds`: of packing the weights. `compile_seconds`: of all other steps of compilation.
    `bytes_per_token`: bytes of weights that one token reads.
    """

    path: Path
    compile_seconds: float
    packing_seconds: float
    bytes_per_token: int


def compile_model(
    checkpoint: Path, output: Path, activations: str, dense: str | None, words: list[str]
) -> Built:
    """Run `mxc compile`. Raises SystemExit with its output if it fails.

    `dense`: value of --quantize-dense, if any. `words`: further arguments.
    """
    command = ["compile", str(checkpoint), "--output", str(output), "--json", "--no-cache"]
    command += ["--activations", activations, *words]
    command += [] if dense is None else ["--quantize-dense", dense]
    run_mxc(command)
    steps = json.loads((output / REPORT).read_text())["steps"]
    seconds = dict.fromkeys(("all", "packing"), 0.0)
    for step in steps:
        seconds["packing" if step["name"] == "packing" else "all"] += step["seconds"]
    manifest = json.loads((output / MANIFEST).read_text())
    options = json.loads((checkpoint / "config.json").read_text())
    return Built(
        path=output,
        compile_seconds=seconds["all"],
        packing_seconds=seconds["packing"],
        bytes_per_token=bytes_per_token(
            manifest["weights"], options["num_experts_per_tok"], options["num_local_experts"]
        ),
    )


def bench_model(
    artifact: Path, prompt: int, generate: int, threads: int, sequences: int = 1
) -> dict[str, Any]:
    """Run `mxc bench --json` and return its result. Rates count the tokens of all sequences."""
    words = ["--prompt", str(prompt), "--generate", str(generate), "--threads", str(threads)]
    if sequences > 1:
        words += ["--batch", str(sequences)]
    found: dict[str, Any] = json.loads(run_mxc(["bench", str(artifact), *words, "--json"]))
    return found


def run_mxc(words: list[str]) -> str:
    """Run mxc and return its standard output. Raises SystemExit with its output if it fails."""
    run = subprocess.run([sys.executable, "-m", "mxc", *words], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"mxc {' '.join(words)}\n{run.stderr}{run.stdout}")
    return run.stdout


def bytes_per_token(weights: dict[str, dict[str, Any]], chosen: int, experts: int) -> int:
    """Return the bytes of weights that one token reads: all but the embedding and the experts that
    are not chosen."""
    total = 0.0
    for name, weight in weights.items():
        if _EMBEDDING in name:
            continue
        part = chosen / experts if ".experts." in name else 1.0
        total += part * math.prod(weight["shape"]) * bits(weight["format"]) / 8
    return round(total)


def bits(format: str) -> float:
    """Return the bits of an element with its share of the block's 8-bit scale.

    Raises KeyError for an unknown format.
    """
    if format in _PLAIN_BITS:
        return _PLAIN_BITS[format]
    block = FORMATS[format]
    return block.element.bits + 8 / block.block
