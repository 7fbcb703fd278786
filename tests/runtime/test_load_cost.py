"""Loading maps: its memory does not grow with the weights, which are read when they are used."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks/load.py"


def test_weights_are_not_read_at_load() -> None:
    """128 MiB of weights, so that they are above the size that is checksummed at load."""
    run = subprocess.run(
        [sys.executable, str(BENCHMARK), "--weights-mib", "128", "--repeat", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout, run.stderr
    result = json.loads(run.stdout)
    assert result["grown_bytes"] < 32 << 20
    assert result["resident_bytes"] < 128 << 20
    assert result["load_seconds"] < 1  # the promise of 50 ms is for a machine at rest
