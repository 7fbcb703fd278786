"""Measure compile time by phase, and peak memory, for a model with the shapes of gpt-oss-20b.

    python benchmarks/compile_time.py [--targets gfx950,cpu] [--layers 24] [--json]

The checkpoint has real headers and no data, and only code is compiled, without weights. Memory is
the largest sampled sum of the resident sets of the command and its compiler process. The exit
status is 1 if all layers take 60 s or more for gfx950.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.gpt_oss import GPT_OSS_20B, write_gpt_oss

#: Limit of compiling all layers for gfx950, in seconds.
LIMIT = 60

#: Interval between two samples of the resident memory, in seconds.
_SAMPLE = 0.05


def resident(pid: int) -> int:
    """Return the sum of the resident sets of a process and all its descendants, in bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (OSError, IndexError):  # it has just ended
        return 0
    return pages * 4096 + sum(resident(child) for child in children)


def measure(checkpoint: Path, target: str, output: Path) -> dict[str, Any]:
    """Compile in a separate process. Raises SystemExit with its errors.

    Returns the steps with their seconds, seconds in all, peak memory in bytes, and the numbers of
    contractions and of dispatches.
    """
    start = time.perf_counter()
    words = [
        "compile",
        checkpoint,
        "--target",
        target,
        "--output",
        output,
        "--weights",
        "none",
        "--no-cache",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "mxc", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        peak = 0
        done = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not done.wait(_SAMPLE):
                peak = max(peak, resident(process.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        _, errors = process.communicate()
        done.set()
        sampler.join()
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(errors)
    report = json.loads((output / REPORT).read_text())
    return {
        "target": target,
        "seconds": seconds,
        "peak_memory_bytes": peak,
        "steps": report["steps"],
        "contractions": len(report["matmuls"]),
        "dispatches": report["dispatches"],
    }


def show(results: list[dict[str, Any]]) -> None:
    """Print a table with a row for each step and a column for each target."""
    names = list(dict.fromkeys(s["name"] for result in results for s in result["steps"]))
    print(f"{'seconds':<28}" + "".join(f"{result['target']:>12}" for result in results))
    for name in names:
        row = [
            sum(s["seconds"] for s in result["steps"] if s["name"] == name) for result in results
        ]
        print(f"{name:<28}" + "".join(f"{seconds:12.2f}" for seconds in row))
    print(f"{'in all, with the start':<28}" + "".join(f"{r['seconds']:12.2f}" for r in results))
    print(
        f"{'peak memory, MiB':<28}"
        + "".join(f"{r['peak_memory_bytes'] / (1 << 20):12.0f}" for r in results)
    )
    for what in ("contractions", "dispatches"):
        print(f"{what:<28}" + "".join(f"{r[what]:12}" for r in results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default="gfx950,cpu", help="separated by commas")
    parser.add_argument("--layers", type=int, default=GPT_OSS_20B.num_hidden_layers)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        options = replace(GPT_OSS_20B, num_hidden_layers=arguments.layers)
        write_gpt_oss(checkpoint, options, headers_only=True, tokenizer=False)
        for target in arguments.targets.split(","):
            results.append(measure(checkpoint, target, Path(folder) / f"{target}.mxc"))
    if arguments.json:
        print(json.dumps(results))
    else:
        show(results)
    whole = arguments.layers >= GPT_OSS_20B.num_hidden_layers
    slow = [r for r in results if r["target"] == "gfx950" and r["seconds"] >= LIMIT]
    return int(whole and bool(slow))


if __name__ == "__main__":
    sys.exit(main())
