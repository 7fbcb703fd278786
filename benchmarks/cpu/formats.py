"""Compare weight formats: how fast their kernels read weights, and how fast they multiply.

    python benchmarks/cpu/formats.py [--formats mxfp4,nvfp4] [--modes bf16,i8,f32] [--rows 1,512]
        [--shape 4096x4096] [--threads 2] [--seconds 2] [--json]

Weights are cold, as in matmul.py. All formats of one mode alternate with the machine's limit, and
the minimum time of each counts. "of limit" is the fraction of memory bandwidth at one row, and of
the peak of the mode's instruction at more rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from contractions import MODES, carried, prepare_activations
from iree.compiler import ir
from iree.compiler.dialects import func
from limits import Machine, numbers
from matmul import limits_of
from problems import COLD_BYTES, Array, Shape, draw_activations, parse_shapes
from programs import Loaded, Program, compile_build, laid_out, shape
from repetitions import interleave

from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_byte
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.runtime.other_load import OtherLoad

#: Most bytes of weights in a chain of products of 32 or more rows: more would take minutes.
_COLD_OF_MANY = 32 << 20


@dataclass(frozen=True)
class Format:
    """A format of weights.

    `element`, `scale`: their MLIR types. `bits`: of an element. `block`: elements that share a
    scale.
    """

    name: str
    element: str
    bits: int
    scale: str = "f8E8M0FNU"
    block: int = 32

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale."""
        return 4 if self.scale == "f32" else 1

    def row_bytes(self, k: int) -> int:
        """Bytes of a row, with its scales."""
        return k * self.bits // 8 + k // self.block * self.scale_bytes

    def draw(self, problem: Shape) -> dict[str, Array]:
        """Draw bytes of elements `w`, of any code (8-bit codes are below 120, so none is NaN), and
        scales `s` below one."""
        rng = np.random.default_rng(0)
        size = problem.n, problem.k * self.bits // 8
        elements = rng.integers(0, 256 if self.bits < 8 else 120, size, dtype=np.uint8)
        blocks = problem.n, problem.k // self.block
        near = {"f8E8M0FNU": (120, 124), "f8E4M3FN": (40, 56)}.get(self.scale)
        if near is None:
            return {"w": elements, "s": rng.random(blocks, np.float32)}
        return {"w": elements, "s": rng.integers(*near, blocks, dtype=np.uint8)}


FORMATS = {
    format.name: format
    for format in (
        Format("mxfp4", "f4E2M1FN", 4),
        Format("nvfp4", "f4E2M1FN", 4, "f8E4M3FN", 16),
        Format("mxfp8e4m3", "f8E4M3FN", 8),
        Format("mxint8", "i8", 8),
        Format("int8", "i8", 8, "f32"),
    )
}


@dataclass(frozen=True)
class Row:
    """One product: milliseconds, 1e9 operations and 1e9 bytes of weights a second.

    `of_limit`: share of the limit, which is DRAM read for one row and else the peak of the mode.
    """

    format: str
    mode: str
    m: int
    ms: float
    gflops: float
    gb_per_second: float
    of_limit: float


def program(format: Format, mode: str, problem: Shape, chains: dict[int, int]) -> Program:
    """Return a program with @chain_M for each M of `chains`.

    It multiplies f32 [M, k] by chains[M] weights, one after the other; n and k must be equal.
    """

    def chain(m: int, count: int, parameters: Parameters) -> Callable[[ir.Value], ir.Value]:
        def body(x: ir.Value) -> ir.Value:
            i8 = ir.IntegerType.get_signless(8)
            blocks = problem.k // format.block
            element, scale = ir.Type.parse(format.element), ir.Type.parse(format.scale)
            for i in range(count):
                packed = parameters.load(
                    f"w{i}", (problem.n, blocks, format.block * format.bits // 8), i8
                )
                kind = i8 if format.scale_bytes == 1 else scale
                scales = parameters.load(f"s{i}", (problem.n, blocks), kind)
                x = carried(x, m, problem.k, format.block)
                lhs, lhs_scale = prepare_activations(mode, x)
                x = scaled_contraction(
                    lhs,
                    packed if is_byte(element) else unpack(packed, element),
                    lhs_scale=lhs_scale,
                    rhs_scale=scales if kind == scale else unpack(scales, scale),
                    name=f"product{i}",
                )
            return x

        return body

    def build(parameters: Parameters) -> None:
        for m, count in chains.items():
            kind = shape(m, problem.k, of=ir.F32Type.get())
            func.FuncOp.from_py_func(kind, name=f"chain_{m}")(chain(m, count, parameters))

    return compile_build(build)


def load(format: Format, made: Program, problem: Shape, copies: int, threads: int) -> Loaded:
    """Load a program with `copies` copies of one weight, each at an address of its own."""
    given: dict[str, Array] = {}
    for name, rows in format.draw(problem).items():
        data = laid_out(made, f"{name}0", rows)
        given |= {f"{name}{i}": data.copy() for i in range(copies)}
    return Loaded(made.code, given, threads)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of all formats, mode by mode. Raises ValueError if a format has no kernel."""
    machine = Machine(options.threads, options.memory_mib)
    (problem,) = options.shape
    for mode in options.modes:
        loaded, chains = {}, {}
        for name in options.formats:
            format = FORMATS[name]
            size = format.row_bytes(problem.k) * problem.n
            cold = {m: options.cold_mib << 20 if m < 32 else _COLD_OF_MANY for m in options.rows}
            chains[name] = {
                m: max(2, min(cold[m], options.cold_mib << 20) // size) for m in options.rows
            }
            made = program(format, mode, problem, chains[name])
            if "w0" not in made.compiled.panels:
                raise ValueError(f"{name} has no kernel for {mode} on this CPU")
            loaded[name] = load(format, made, problem, max(chains[name].values()), options.threads)
        for m in options.rows:
            x = draw_activations(m, problem.k)
            calls = {
                name: program.prepare(f"chain_{m}", program.put(x))
                for name, program in loaded.items()
            }
            names = [name for name in limits_of(mode, m) if name in machine.calls]
            seconds = options.seconds * len(calls)
            limits = {name: machine.calls[name] for name in names}
            times = interleave({**limits, **calls}, seconds=seconds)
            best = machine.best_rate(names, times) or float("nan")
            for name in calls:
                each = times[name].each_of(chains[name][m]).least
                gflops = problem.operations(m) / each / 1e9
                rate = FORMATS[name].row_bytes(problem.k) * problem.n / each / 1e9
                share = (rate if m == 1 else gflops) / best
                yield Row(name, mode, m, 1e3 * each, gflops, rate, share)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--formats", default="mxfp4,nvfp4", help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--modes", default="bf16,i8,f32", help=f"of {', '.join(MODES)}")
    parser.add_argument("--rows", type=numbers, default=[1, 512], help="separated by commas")
    parser.add_argument("--shape", type=parse_shapes, default=[Shape(4096, 4096)], help="NxN")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each product")
    parser.add_argument("--memory-mib", type=int, default=512, help="read for the DRAM limit")
    parser.add_argument("--cold-mib", type=int, default=COLD_BYTES >> 20, help="of weights")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.formats, options.modes = options.formats.split(","), options.modes.split(",")
    others = OtherLoad()
    rows = list(measure(options))
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "other_cores": others.cores()}))
        return 0
    print(f"{'format':<12}{'mode':<6}{'m':>5}{'ms':>9}{'GFLOP/s':>9}{'GB/s':>7}{'of limit':>10}")
    for row in rows:
        print(
            f"{row.format:<12}{row.mode:<6}{row.m:5}{row.ms:9.3f}{row.gflops:9.0f}"
            f"{row.gb_per_second:7.1f}{row.of_limit:10.0%}"
        )
    print(f"\nothers used {others}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
