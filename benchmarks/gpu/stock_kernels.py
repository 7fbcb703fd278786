"""Run parts of ordinary models, compiled by stock IREE, on the simulator under its sanitizer.

    python benchmarks/gpu/stock_kernels.py [--filter REGEX] [--target gfx950] [--list]

IREE compiles StableHLO (stock_cases.py) without a pass of mxc; results are compared with numpy. The
script prints a line for each program that disagrees, is refused, or has a finding of the sanitizer,
and at the end how many are right. The exit status is 1 where one is wrong. A program takes a second
to compile.
"""

from __future__ import annotations

import argparse
import re
import sys
import zlib
from collections import Counter
from typing import Any

import numpy as np
from iree.compiler import tools
from stock_cases import DTYPES, Case, cases

from mxc.errors import CodeObjectError
from mxc.simulator.errors import SimulationError
from mxc.simulator.host.hal import HalBuffer, HalDevice, View
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import read_module
from mxc.simulator.watch.sanitizer import Sanitizer

TARGETS = ("gfx950", "gfx942")
#: IREE's numbers for element types.
_ELEMENTS = {
    "f32": 0x21000020,
    "f16": 0x21000010,
    "bf16": 0x22000010,
    "i32": 0x10000020,
    "i8": 0x10000008,
}


def run(case: Case, target: str) -> tuple[str, str]:
    """Compile a case, run it, and compare its result.

    Return what became of it, and why: "right", "wrong", "refused" by the simulator or "not
    compiled" by IREE.
    """
    try:
        module = _compiled(case, target)
    except tools.CompilerToolError as error:
        return "not compiled", re.findall(r"error: (.*)", str(error))[0]
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    given = [_random(rng, shape, kind) for shape, kind in case.inputs]
    views = [
        View(HalBuffer.over(array.copy()), array.shape, _ELEMENTS[kind], 1)
        for array, (_, kind) in zip(given, case.inputs, strict=True)
    ]
    sanitizer = Sanitizer()
    try:
        device = HalDevice(observe=lambda _: sanitizer)
        (found,) = Machine(read_module(module), device.functions()).call("main", *views)
    except (CodeObjectError, SimulationError) as error:
        return "refused", " ".join(str(error).split())[:300]
    right = np.asarray(case.wanted(*(array.astype(np.float64) for array in given)))
    out = next(name for name, number in _ELEMENTS.items() if number == found.element)
    result = np.frombuffer(found.buffer.bytes.tobytes(), DTYPES[out]).reshape(found.shape)
    values = result.astype(np.float64)
    difference = np.abs(values - right).max() / max(np.abs(right).max(), 1e-30)
    if not difference <= case.bound:
        return "wrong", f"error {difference:.2g} of {case.bound:.2g}"
    if sanitizer.findings:
        return "wrong", f"accused: {sanitizer.findings[0]}"
    return "right", ""


def _compiled(case: Case, target: str) -> bytes:
    found: bytes = tools.compile_str(
        case.text,
        input_type="stablehlo",
        extra_args=[
            "--iree-hal-target-device=hip",
            f"--iree-rocm-target={target}",
            "--mlir-disable-threading",
            "--iree-input-demote-f64-to-f32=false",
        ],
    )
    return found


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Any:
    if kind.startswith("i"):
        return rng.integers(0, 50, shape).astype(DTYPES[kind])
    return rng.standard_normal(shape).astype(np.float32).astype(DTYPES[kind])


def main() -> int:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--filter", default="")
    parser.add_argument("--target", choices=TARGETS, default="gfx950")
    parser.add_argument("--list", action="store_true")
    words = parser.parse_args()
    counts: Counter[str] = Counter()
    for case in cases():
        if not re.search(words.filter, case.name):
            continue
        if words.list:
            print(case.name)
            continue
        kind, why = run(case, words.target)
        counts[kind] += 1
        if why:
            print(f"{words.target} {case.name}: {kind}: {why}", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{words.target}: {count} {kind}")
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
