"""Check that a quantization with a killed worker, once resumed, gives the same bytes.

    python benchmarks/quantize_resume.py [--layers 11] [--workers 2] [--format mxfp4]

Writes a random checkpoint of layers of an 8B Llama in bfloat16, 436 MB each. Quantizes it with
threads, then with worker processes of which one is killed after a third of the pieces, then again.
Prints processor seconds of each run, children included, and the SHA-256 of the files. The exit
status is 1 if the files differ, or the second run with workers did not resume the first.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quantize import write


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def lines(folder: Path) -> int:
    """Return the number of pieces in the journals below a folder (a header, then a line each)."""
    return sum(len(path.read_text().splitlines()) - 1 for path in folder.glob(".*/journal.jsonl"))


def children(parent: int) -> list[int]:
    """Return the pids of the worker processes of a command, without multiprocessing's tracker."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def run(words: list[str], output: Path, kill_at: int | None = None) -> tuple[int, str]:
    before = os.times()
    command = [sys.executable, "-m", "mxc", "quantize", *words, "--output", str(output), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while kill_at is not None and process.poll() is None:
        if lines(output.parent) >= kill_at:
            os.kill(children(process.pid)[0], signal.SIGKILL)
            break
        time.sleep(0.05)
    said = process.communicate()[1].strip()
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    print(f"mxc quantize {' '.join(words[1:])}: status {process.returncode}, {spent:.1f} s of "
          f"processor time\n  {said}")  # fmt: skip
    return process.returncode, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=11, help="of 436 MB each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--format", default="mxfp4")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write(folder / "source", arguments.layers)
        plain = [str(folder / "source"), "--format", arguments.format]
        parallel = [*plain, "--workers", str(arguments.workers)]
        run(plain, folder / "whole")
        lost, _ = run(parallel, folder / "resumed", kill_at=arguments.layers * 3)
        kept = lines(folder)
        print(f"  {kept} pieces in the journal")
        resumed, said = run(parallel, folder / "resumed")
        found = [digests(folder / each) for each in ("whole", "resumed")]
        print(json.dumps(found, indent=1))
        good = lost == 1 and resumed == 0 and f"{kept} pieces are done" in said
        return int(not good or found[0] != found[1])


if __name__ == "__main__":
    sys.exit(main())
