"""Measure time and memory of loading an artifact with 1 GiB of weights.

    python benchmarks/load.py [--weights-mib 1024] [--repeat 5]

Writes an artifact of one trivial function that reads one parameter, then loads it in fresh
processes. The figures are the median time of the call of `mxc.load` and the median growth of the
resident set; imports before it are shown separately. The limits are 50 ms and 100 MiB; the exit
status is 1 if one is reached.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from iree import runtime as rt
from iree.compiler import tools

from mxc.artifact.manifest import (
    MANIFEST,
    MODULE,
    WEIGHTS,
    FileRecord,
    Function,
    Manifest,
    TargetRecord,
    TensorType,
)
from mxc.artifact.versions import iree_version, mxc_version

#: Limits of the time of loading, and of the growth of the resident set.
SECONDS, BYTES = 0.05, 100 << 20

#: Script of the fresh process; its argument is the path of the artifact.
PROBE = """
import json, sys, time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
start = time.perf_counter()
import numpy as np
from mxc.runtime.session import load
imported = time.perf_counter()
before = resident()
model = load(sys.argv[1])
loaded = time.perf_counter()
after = resident()
(first,) = model.call("main", 3)
print(json.dumps({
    "import_seconds": imported - start, "load_seconds": loaded - imported,
    "call_seconds": time.perf_counter() - loaded,
    "resident_bytes": after, "grown_bytes": after - before, "first": int(first[0]),
}))
"""

PROGRAM = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<{count}xi32>
func.func @main(%i: i32) -> tensor<1xi32> {{
  %w = util.global.load @w : tensor<{count}xi32>
  %p = arith.index_cast %i : i32 to index
  %r = tensor.extract_slice %w[%p] [1] [1] : tensor<{count}xi32> to tensor<1xi32>
  return %r : tensor<1xi32>
}}
"""


def write_artifact(folder: Path, weights_mib: int) -> None:
    """Write an artifact whose one parameter of `weights_mib` MiB holds 0, 1, 2, ... as i32."""
    count = weights_mib << 18
    folder.mkdir()
    source = folder.with_suffix(".mlir")
    source.write_text(PROGRAM.format(count=count))
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    flags += ["--iree-llvmcpu-target-cpu=generic"]
    tools.compile_file(str(source), output_file=str(folder / MODULE), extra_args=flags)
    rt.save_archive_file({"w": np.arange(count, dtype=np.int32)}, folder / WEIGHTS)
    row = TensorType(shape=(1,), dtype="i32")
    machine = platform.machine()
    manifest = Manifest(
        mxc_version=mxc_version(),
        iree_version=iree_version(),
        target=TargetRecord(
            name="cpu",
            device="local-task",
            architecture={"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine),
            chip="generic",
        ),
        activations="f32",
        functions={"main": Function(inputs=(TensorType(shape=(), dtype="i32"),), outputs=(row,))},
        files={file.name: _record(file) for file in folder.iterdir()},
    )
    (folder / MANIFEST).write_text(manifest.to_json())


def _record(file: Path) -> FileRecord:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileRecord(bytes=file.stat().st_size, sha256=digest)


def measure(folder: Path) -> dict[str, float]:
    """Load the artifact in a fresh process, and return the figures that PROBE prints."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder)], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(run.stdout)
    assert result["first"] == 3, "the wrong weights were read"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights-mib", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "load.mxc"
        write_artifact(folder, options.weights_mib)
        runs = [measure(folder) for _ in range(options.repeat)]
    result = {name: median(run[name] for run in runs) for name in runs[0]}
    result["weights_mib"] = options.weights_mib
    result["worst_load_seconds"] = max(run["load_seconds"] for run in runs)
    print(json.dumps(result, indent=1))
    kept = result["load_seconds"] < SECONDS and result["grown_bytes"] < BYTES
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
