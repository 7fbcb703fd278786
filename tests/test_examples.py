"""The programs of examples/ are run as they stand; each checks its own numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
#: What each prints among other things.
SHOWN = {
    "jax_function": r"constant\.1.*f4E2M1FN",
    "own_kernel": r"(?s)T \+= dot A, A\n.*for n by 64 in grid:.*: multiply-add",
    "own_pass": r"(?s)example-multiply-by-reciprocals\{largest=64\}.*dense<2.5.*1\.75\]",
    "quantize_and_generate": r"bytes became \d+; \d+\.\d dB\n\[\d+(, \d+){7}\]",
    "scaled_matmul_gfx950": r"hot loop(?s:.*)[1-9]\d* of \d+ lines of the loop are scaled matrix",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(example: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert found.returncode == 0, found.stderr
    assert re.search(SHOWN[example.stem], found.stdout), found.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
