"""Programs compiled and loaded, with their report."""

import json
from pathlib import Path
from typing import Any

import mxc
from tests.forms.form_weights import TARGETS


def compile_forms(folder: Path, target: str, program: str) -> tuple[Any, Any]:
    """The artifact of `program` in `folder`, loaded on the device of `target`, and its report."""
    source, output = folder / "program.mlir", folder / "program.mxc"
    source.write_text(program)
    mxc.compile(source, target=target, output=output)
    report = json.loads((output / "report.json").read_text())
    return mxc.load(output, device=TARGETS[target][0]), report
