"""Measure the simulator on stock kernels of f4 x f4, with and without its sanitizer.

    python benchmarks/simulator.py [--repeat 5] [--json]

Compiles each product with IREE without mxc's passes, translates its kernel once, and takes the
minimum of runs that alternate between plain and sanitized. The limits on two cores are 20 ms for
128x256x512, 0.3 s for 1024x1024x1024 and 100x2880x2880, and 3 times as much with the sanitizer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from iree.compiler import tools

from mxc.simulator.code.code_object import read_kernels
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.sanitizer import Sanitizer

#: Shape (m, n, k), number of workgroups, and limit of a plain run in seconds (None: no limit).
CASES = (
    ((16, 16, 128), 1, None),
    ((128, 256, 512), 1, 0.02),
    ((1024, 1024, 1024), 16, 0.3),
    ((100, 2880, 2880), 6, 0.3),
)
FLAGS = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950")


def product(m: int, n: int, k: int) -> str:
    """Return a program of the product of two mxfp4 matrices, [m, k] and [n, k], given as bytes."""
    blocks, f4, e8 = k // 32, "f4E2M1FN", "f8E8M0FNU"

    def enter(name: str, rows: int) -> str:
        elements, scales = f"{rows}x{blocks}x32x{f4}", f"{rows}x{blocks}x{e8}"
        return f"""
  %{name} = flow.tensor.bitcast %{name}8 : tensor<{rows}x{blocks}x16xi8> -> tensor<{elements}>
  %{name}s = flow.tensor.bitcast %{name}s8 : tensor<{rows}x{blocks}xi8> -> tensor<{scales}>"""

    return f"""
func.func @main(%a8: tensor<{m}x{blocks}x16xi8>, %b8: tensor<{n}x{blocks}x16xi8>,
    %as8: tensor<{m}x{blocks}xi8>, %bs8: tensor<{n}x{blocks}xi8>) -> tensor<{m}x{n}xf32> {{
  {enter("a", m)}
  {enter("b", n)}
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %r = linalg.generic {{
    indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>,
      affine_map<(m, n, o, b) -> (m, o)>, affine_map<(m, n, o, b) -> (n, o)>,
      affine_map<(m, n, o, b) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
    ins(%a, %b, %as, %bs : tensor<{m}x{blocks}x32x{f4}>, tensor<{n}x{blocks}x32x{f4}>,
      tensor<{m}x{blocks}x{e8}>, tensor<{n}x{blocks}x{e8}>)
    outs(%c : tensor<{m}x{n}xf32>) {{
  ^bb0(%x: {f4}, %y: {f4}, %s: {e8}, %t: {e8}, %acc: f32):
    %0 = arith.scaling_extf %x, %s : {f4}, {e8} to f32
    %1 = arith.scaling_extf %y, %t : {f4}, {e8} to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %acc, %2 : f32
    linalg.yield %3 : f32
  }} -> tensor<{m}x{n}xf32>
  return %r : tensor<{m}x{n}xf32>
}}
"""


def measure(shape: tuple[int, int, int], workgroups: int, repeat: int) -> dict[str, float]:
    """Return the seconds of translation, and the least of a run without and with the sanitizer."""
    m, n, k = shape
    with tempfile.TemporaryDirectory() as folder:
        flags = [*FLAGS, f"--iree-hal-dump-executable-binaries-to={folder}"]
        tools.compile_str(product(m, n, k), extra_args=flags)
        (file,) = Path(folder).glob("*.hsaco")
        (kernel,) = read_kernels(file.read_bytes()).values()
    start = time.perf_counter()
    plain = TranslatedKernel(kernel)
    found = {"translate": time.perf_counter() - start}
    observed = TranslatedKernel(kernel, observed=True)
    rng = np.random.default_rng(0)
    sizes = ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32))
    buffers = [rng.integers(118, 134, size, dtype=np.uint8) for size in sizes]
    buffers.append(np.zeros((m, n * 4), np.uint8))
    for _ in range(repeat):
        for name, program, watch in (("run", plain, None), ("sanitized", observed, Sanitizer())):
            start = time.perf_counter()
            launch(program, (workgroups, 1, 1), buffers, observer=watch)
            found[name] = min(found.get(name, np.inf), time.perf_counter() - start)
    return found


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    for shape, workgroups, promise in CASES:
        found = measure(shape, workgroups, options.repeat)
        results.append({"shape": shape, "promised": promise, **found})
        if not options.json:
            ratio = found["sanitized"] / found["run"]
            print(
                f"{'x'.join(map(str, shape)):>16}  translate {found['translate'] * 1e3:6.1f} ms  "
                f"run {found['run'] * 1e3:7.1f} ms  sanitizer x {ratio:.1f}"
                + (f"  (promised {promise * 1e3:.0f} ms)" if promise else "")
            )
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
