"""Modules of frameworks, compiled for this CPU, run and compared: the list of docs/programs.md.

    python benchmarks/exported_modules.py [--output docs/programs.md]

The modules are those of tests/compiler/programs/; nobody here wrote them, and weights are random.
The lines between the marks of the page are replaced. The exit status is 1 where a number is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "compiler" / "programs"))

BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"
#: The largest difference, over the largest magnitude of what the framework computes.
BOUND = 1e-4


def main() -> int:
    """Write the list. 1 where a module differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "programs.md")
    output = parser.parse_args().output
    rows = [*_jax(), *_torch(), *_onnx()]
    lines = [row for row, _ in rows]
    page = output.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    output.write_text("\n".join([before + BEGIN, *lines, END]) + after)
    return int(any(difference > BOUND for _, difference in rows))


def _jax() -> Any:
    import jax
    from jax import export
    from jax_modules import MODULES

    for name, module in MODULES.items():
        function, shapes = module()
        random = np.random.default_rng(0)
        values = [random.standard_normal(each.shape).astype(np.float32) for each in shapes]
        wanted = jax.tree.leaves(function(*values))
        yield _row("JAX", name, export.export(jax.jit(function))(*shapes), values, wanted)


def _torch() -> Any:
    from test_torch import _array
    from torch_modules import exported

    for name, (program, module, values) in exported().items():
        wanted = [getattr(module, "wanted", module)(*values).detach().numpy()]
        yield _row("torch", name, program, list(map(_array, values)), wanted)


def _onnx() -> Any:
    from onnx_modules import BACKEND, given

    for name, path in BACKEND.items():
        file, values, wanted = given(name)
        yield _row("ONNX", path, file, values, wanted)


def _row(
    framework: str, name: str, program: Any, values: list[Any], wanted: list[Any]
) -> tuple[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        artifact = mxc.compile(program, output=Path(folder) / "module.mxc")
        found = mxc.load(artifact.path).call("main", *values)
        report = Report.from_dict(json.loads((artifact.path / REPORT).read_text()))
    difference = max(
        float(np.abs(one - np.asarray(other)).max() / np.abs(np.asarray(other)).max())
        for one, other in zip(found, wanted, strict=True)
    )
    reasons = Counter(one.fallback or one.reason for one in report.matmuls)
    ours = reasons.pop(None, 0)
    text = f"- {framework}, {name}: {difference:.0e}; {ours} of {len(report.matmuls)} contractions"
    lines = [text, *(f"{count}: {reason}" for reason, count in reasons.items())]
    wrapped = textwrap.wrap("; ".join(lines) + ".", 118, subsequent_indent="  ")
    return "\n".join(wrapped), difference


if __name__ == "__main__":
    sys.exit(main())
