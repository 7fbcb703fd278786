"""Compile and run modules of frameworks on this CPU, and write the table of docs/programs.md.

    python benchmarks/exported_modules.py [--output docs/programs.md]

The modules are those of tests/compiler/programs/, which are third-party modules with random
weights. The lines between the marks BEGIN and END in the page are replaced. The exit status is 1 if
a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"
#: Largest allowed difference, relative to the largest magnitude of the framework's result.
BOUND = 1e-4


def main() -> int:
    """Write the table. Return 1 if the result of a module differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "programs.md")
    output = parser.parse_args().output
    rows = [
        row
        for framework, found in (("JAX", _jax()), ("torch", _torch()), ("ONNX", _onnx()))
        for row in _rows(framework, found)
    ]
    page = output.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    output.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n{END}{after}")
    return int(any(row.difference > BOUND for row in rows))


@dataclass(frozen=True)
class Row:
    """One module.

    `difference`: the largest one, relative to the largest magnitude of the framework's result.
    `reasons`: why contractions have no kernel of mxc -> the number of contractions with the reason.
    """

    framework: str
    name: str
    difference: float
    contractions: int
    reasons: Mapping[str, int]


def table(rows: Sequence[Row]) -> str:
    """Return the table, and below it a numbered list of the reasons."""
    notes = list(dict.fromkeys(reason for row in rows for reason in row.reasons))
    lines = ["| | module | difference | kernels of mxc | others |", "|---|---|---|---|---|"]
    for row in rows:
        own = row.contractions - sum(row.reasons.values())
        others = ", ".join(f"{count} ({notes.index(r) + 1})" for r, count in row.reasons.items())
        lines.append(
            f"| {row.framework} | {row.name} | {row.difference:.0e} "
            f"| {own} of {row.contractions} | {others} |"
        )
    lines.append("")
    for number, note in enumerate(notes, 1):
        text = f"{number}. {note}"
        lines.append(textwrap.fill(text, 120, subsequent_indent="   ", break_on_hyphens=False))
    return "\n".join(lines) + "\n"


#: Name of a module -> its program, its arguments, and the results of the framework.
Modules = dict[str, tuple[Any, list[Any], list[Any]]]


def _jax() -> Modules:
    import jax
    from jax import export

    from tests.compiler.programs.jax_modules import MODULES

    found = {}
    for name, module in MODULES.items():
        function, shapes = module()
        random = np.random.default_rng(0)
        values = [random.standard_normal(each.shape).astype(np.float32) for each in shapes]
        wanted = jax.tree.leaves(function(*values))
        found[name] = (export.export(jax.jit(function))(*shapes), values, wanted)
    return found


def _torch() -> Modules:
    from tests.compiler.programs.test_torch import _array
    from tests.compiler.programs.torch_modules import exported

    found = {}
    for name, (program, module, values) in exported().items():
        wanted = [getattr(module, "wanted", module)(*values).detach().numpy()]
        found[name] = (program, list(map(_array, values)), wanted)
    return found


def _onnx() -> Modules:
    from tests.compiler.programs.onnx_modules import BACKEND, given

    return {path: given(name) for name, path in BACKEND.items()}


def _rows(framework: str, modules: Modules) -> Iterator[Row]:
    """Compile all modules as functions of one artifact, run them, and yield the row of each."""
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
            reasons = Counter(why for one in own if (why := one.fallback or one.reason))
            yield Row(framework, name, difference, len(own), reasons)


if __name__ == "__main__":
    sys.exit(main())
