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
from collections.abc import Iterator
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
    rows = [
        row
        for framework, found in (("JAX", _jax()), ("torch", _torch()), ("ONNX", _onnx()))
        for row in _rows(framework, found)
    ]
    lines = [row for row, _ in rows]
    page = output.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    output.write_text("\n".join([before + BEGIN, *lines, END]) + after)
    return int(any(difference > BOUND for _, difference in rows))


#: Of each module its program, its arguments, and what the framework computes.
Modules = dict[str, tuple[Any, list[Any], list[Any]]]


def _jax() -> Modules:
    import jax
    from jax import export
    from jax_modules import MODULES

    found = {}
    for name, module in MODULES.items():
        function, shapes = module()
        random = np.random.default_rng(0)
        values = [random.standard_normal(each.shape).astype(np.float32) for each in shapes]
        wanted = jax.tree.leaves(function(*values))
        found[name] = (export.export(jax.jit(function))(*shapes), values, wanted)
    return found


def _torch() -> Modules:
    from test_torch import _array
    from torch_modules import exported

    found = {}
    for name, (program, module, values) in exported().items():
        wanted = [getattr(module, "wanted", module)(*values).detach().numpy()]
        found[name] = (program, list(map(_array, values)), wanted)
    return found


def _onnx() -> Modules:
    from onnx_modules import BACKEND, given

    return {path: given(name) for name, path in BACKEND.items()}


def _rows(framework: str, modules: Modules) -> Iterator[tuple[str, float]]:
    """The line of each module, and its difference; all are functions of one artifact."""
    symbols = {name: f"module{number}" for number, name in enumerate(modules)}
    programs = {symbols[name]: program for name, (program, _, _) in modules.items()}
    with tempfile.TemporaryDirectory() as folder:
        artifact = mxc.compile(programs, output=Path(folder) / "modules.mxc")
        model = mxc.load(artifact.path)
        report = Report.from_dict(json.loads((artifact.path / REPORT).read_text()))
        for name, (_, values, wanted) in modules.items():
            pairs = zip(model.call(symbols[name], *values), map(np.asarray, wanted), strict=True)
            difference = max(float(np.abs(one - w).max() / np.abs(w).max()) for one, w in pairs)
            own = [one for one in report.matmuls if one.function == symbols[name]]
            reasons = Counter(one.fallback or one.reason for one in own)
            ours = reasons.pop(None, 0)
            text = f"- {framework}, {name}: {difference:.0e}; {ours} of {len(own)} contractions"
            lines = [text, *(f"{count}: {reason}" for reason, count in reasons.items())]
            wrapped = textwrap.wrap(
                "; ".join(lines) + ".",
                118,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield "\n".join(wrapped), difference


if __name__ == "__main__":
    sys.exit(main())
