"""Measure quantizing a bfloat16 checkpoint with the shapes of an 8B Llama: MB/s, peak memory.

    python benchmarks/quantize.py [--format mxfp4] [--recipe even] [--layers 2] [--rounds 3]

Writes a random checkpoint of some of the model's 32 layers, and quantizes it in separate processes:
with mxc on two threads, and with torchao on the same tensors and as many threads, read and written
with the safetensors library by a short script. They alternate, and the fastest run of each counts.
Then mxc quantizes one file of 5 GB, the size of published shards, to measure its peak memory (not
with --no-shard). The file system cache is warm, as after a download. The exit status is 1 if mxc
reads less than 400 MB/s or its peak memory is 2 GiB or more.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

WANTED_MB, LIMIT = 400.0, 2 << 30
HIDDEN, INNER, KEYS = 4096, 14336, 1024
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
#: Number of layers, of 436 MB each, in the file of about 5 GB.
SHARD_LAYERS = 11

#: Start of both scripts: prints their figures. Peak memory is not ru_maxrss, which survives exec
#: and would count the parent's pages.
REPORT = """
def report(done, seconds):
    status = open("/proc/self/status").read().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"mb_per_second": done / seconds / 1e6,
                      "peak_memory_bytes": int(peak.split()[1]) * 1024}))
"""
OURS = """
import json, sys
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
source, output, format, recipe, threads = sys.argv[1:]
result = quantize_checkpoint(
    source, output, format, recipe=recipe or None, workers=Workers(threads=int(threads))
)
report(result.bytes_read, result.seconds)
"""
TORCHAO = """
import json, sys, time
from pathlib import Path
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
source, output, format, recipe, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
element = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp6e2m3": DTYPE_FP6_E2M3,
           "mxfp6e3m2": DTYPE_FP6_E3M2, "mxfp8e4m3": torch.float8_e4m3fn,
           "mxfp8e5m2": torch.float8_e5m2}[format]
mode = ScaleCalculationMode[recipe.upper()]
start, done = time.perf_counter(), 0
Path(output).mkdir()
for file in sorted(Path(source).glob("*.safetensors")):
    found = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():
            weight = tensors.get_tensor(name)
            done += weight.nbytes
            if weight.ndim == 2:
                scales, elements = to_mx(weight, element, 32, mode)
                found[name] = elements.view(torch.uint8)
                found[name + "_scale"] = scales.view(torch.uint8)
            else:
                found[name] = weight
    save_file(found, Path(output) / file.name)
report(done, time.perf_counter() - start)
"""


def write(folder: Path, layers: int) -> None:
    """Write a checkpoint of one file into a new folder. All layers have the same random values."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    size = INNER * HIDDEN
    values = (rng.standard_normal(size, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    tensors: dict[str, NDArray[np.generic]] = {}
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        for name, shape in SHAPES.items():
            tensors[f"{stem}.{name}.weight"] = values[: shape[0] * shape[1]].reshape(shape)
        tensors[f"{stem}.input_layernorm.weight"] = values[:HIDDEN]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')


def measure(program: str, source: Path, arguments: argparse.Namespace) -> dict[str, float]:
    output = source.with_name("output")
    words = [str(source), str(output), arguments.format, arguments.recipe, str(arguments.threads)]
    command = [sys.executable, "-c", REPORT + program, *words]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(output)
    result: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return result


def best(results: list[dict[str, float]]) -> dict[str, float]:
    return max(results, key=lambda result: result["mb_per_second"])


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    rows = folder / "rows"
    print(f"writing {arguments.layers} layers", file=sys.stderr)
    write(rows, arguments.layers)
    programs = {"mxc": OURS} | ({} if arguments.no_peer else {"torchao": TORCHAO})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for number in range(arguments.rounds):
        for name, program in programs.items():
            found[name].append(measure(program, rows, arguments))
            print(f"round {number + 1}: {name} {line(found[name][-1])}", file=sys.stderr)
    shutil.rmtree(rows)
    results = {name: best(each) for name, each in found.items()}
    if not arguments.no_shard:
        print(f"writing {SHARD_LAYERS} layers in one file", file=sys.stderr)
        write(rows, SHARD_LAYERS)
        results["mxc, a file of 5 GB"] = measure(OURS, rows, arguments)
        shutil.rmtree(rows)
    return results


def line(result: dict[str, float]) -> str:
    memory = result["peak_memory_bytes"] / (1 << 20)
    return f"{result['mb_per_second']:.0f} MB/s, peak memory {memory:.0f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", default="mxfp4")
    parser.add_argument("--recipe", default="even", help='"" for nvfp4, with --no-peer')
    parser.add_argument("--layers", type=int, default=2, help="of 436 MB each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true", help="without torchao")
    parser.add_argument("--no-shard", action="store_true", help="without the file of 5 GB")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        results = compare(Path(folder), arguments)
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for name, result in results.items():
            print(f"{name:<20} {line(result)}")
    ours = [result for name, result in results.items() if name.startswith("mxc")]
    slow = results["mxc"]["mb_per_second"] < WANTED_MB
    return int(slow or any(result["peak_memory_bytes"] >= LIMIT for result in ours))


if __name__ == "__main__":
    sys.exit(main())
