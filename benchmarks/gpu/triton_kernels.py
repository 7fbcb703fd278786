"""Run kernels that Triton compiles for gfx950 and gfx942 on the simulator under its sanitizer.

    python benchmarks/gpu/triton_kernels.py [--filter REGEX] [--target gfx950] [--list] [--plain]

Their machine code is independent of mxc and IREE; a simulator that only ran kernels of these two
could share their errors. Results are compared with numpy. The script prints a line for each kernel
that disagrees, is refused, or has a finding of the sanitizer, and at the end how many are right.
The exit status is 1 where one is wrong. `--plain`: without the sanitizer.
Needs `pip install --no-deps triton==3.9.0`, and no GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import sys
import tempfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_pointwise
import triton_products
import triton_reductions
from triton_case import BOUNDS, TYPES, Case, wide

from mxc.errors import CodeObjectError
from mxc.simulator.errors import SimulationError
from mxc.simulator.simulate import simulate
from mxc.simulator.watch.sanitizer import Sanitizer

TARGETS = ("gfx950", "gfx942")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    kind: "right"; "wrong": a number, or a finding of the sanitizer; "wrong by Triton": a known
    fault of its code; "refused" by the simulator; "not compiled" by Triton. why: a line.
    """

    kind: str
    why: str = ""


def cases() -> list[Case]:
    """Return all kernels. They are the same for each target."""
    parts = (triton_pointwise, triton_reductions, triton_products)
    found = [case for part in parts for case in part.cases()]
    assert len({case.name for case in found}) == len(found)
    return found


def compiled(case: Case, given: Any, target: str) -> Any:
    """Compile a case by Triton for its arguments `given`."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    names = [parameter.name for parameter in case.kernel.params]
    signature, attributes = {}, {}
    for at, name in enumerate(names):
        if name in case.constants:
            signature[name] = "constexpr"
            continue
        value = given[name]
        if isinstance(value, np.ndarray):
            signature[name] = "*" + TYPES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        pointer = isinstance(value, np.ndarray)
        if case.aligned and (pointer or (isinstance(value, int) and value % 16 == 0)):
            attributes[at,] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=case.kernel, signature=signature, constexprs=dict(case.constants), attrs=attributes
    )
    return compile(source, target=GPUTarget("hip", target, 64), options=dict(case.options))


def run(case: Case, target: str, *, sanitize: bool = True) -> Outcome:
    """Compile a case, run it on the simulator, and compare its results."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    given, wanted = case.build(rng)
    try:
        made = compiled(case, given, target)
    except Exception as error:  # the compiler raises what it likes
        return Outcome("not compiled", _line(error))
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    numbers = [value for value in given.values() if not isinstance(value, np.ndarray)]
    words = [
        struct.unpack("<I", struct.pack("<f", n))[0] if isinstance(n, float) else n & 0xFFFFFFFF
        for n in numbers
    ]
    # After the arguments Triton passes memory for itself, which these kernels do not use.
    buffers = [*arrays.values(), *(np.zeros(4, np.uint8) for _ in range(2))]
    group = (64 * made.metadata.num_warps, 1, 1)
    sanitizer = Sanitizer() if sanitize else None
    try:
        results = simulate(
            made.asm["hsaco"],
            case.grid,
            buffers,
            words,
            workgroup=group,
            dynamic_lds=made.metadata.shared,
            observer=sanitizer,
        )
    except (CodeObjectError, SimulationError) as error:
        return Outcome("refused", _line(error))
    for name, array in zip(arrays, results, strict=False):
        if name in wanted:
            wrong = _difference(wanted[name], array, case.bound)
            if wrong:
                kind = "wrong by Triton" if case.fault else "wrong"
                return Outcome(kind, f"{name}: {wrong}" + (f"; {case.fault}" * bool(case.fault)))
    if sanitizer is not None and sanitizer.findings:
        first = sanitizer.findings[0]
        return Outcome("wrong", f"accused: {first.kind} at {first.place}: {first.detail}")
    return Outcome("right")


def _difference(wanted: Any, found: Any, bound: float | None) -> str:
    """Describe how a result is wrong; "" if it is right."""
    kind = TYPES[wanted.dtype]
    if kind not in BOUNDS:
        count = int((wanted != found).sum())
        return f"{count} of {wanted.size} integers differ" if count else ""
    right, given = wide(wanted), wide(found)
    same = (right == given) | (np.isnan(right) & np.isnan(given))
    if same.all():
        return ""
    finite = np.isfinite(right)
    error = np.abs(right - given)[~same].max() / max(np.abs(right[finite]).max(), 1e-30)
    limit = BOUNDS[kind] if bound is None else bound
    return "" if error <= limit else f"error {error:.2g} of {limit:.2g}"


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> int:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--filter", default="")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--plain", action="store_true")
    words = parser.parse_args()
    chosen = [case for case in cases() if re.search(words.filter, case.name)]
    counts: dict[tuple[str, str], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for target in TARGETS if words.target is None else (words.target,):
            for case in chosen:
                if words.list:
                    print(f"{target} {case.name}")
                    continue
                outcome = run(case, target, sanitize=not words.plain)
                counts[target, outcome.kind] = counts.get((target, outcome.kind), 0) + 1
                if outcome.kind != "right":
                    print(f"{target} {case.name}: {outcome.kind}: {outcome.why}", flush=True)
    for (target, kind), count in sorted(counts.items()):
        print(f"{target}: {count} {kind}")
    return int(any(kind == "wrong" for _, kind in counts))


if __name__ == "__main__":
    sys.exit(main())
