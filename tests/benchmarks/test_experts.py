"""The benchmark of experts prints a line for each type and number of tokens, with right numbers."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "experts.py"


def test_a_table() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "0", "--hidden", "64", "--inner", "32"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    _, _, *lines = run.stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    wanted = [(kind, count) for kind in ("float32", "bfloat16") for count in ("2", "32", "256")]
    assert [(kind, tokens) for kind, tokens, *_ in rows] == wanted
    most = {"float32": 1e-5, "bfloat16": 2e-2}
    assert all(float(difference) < most[kind] for kind, *_, difference in rows)
