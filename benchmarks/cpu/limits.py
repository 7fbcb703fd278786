"""Measure the limits of this machine: dot products, multiply-adds and reads from memory.

    python benchmarks/cpu/limits.py [--threads 1,2] [--seconds 1] [--memory-mib 512] [--json]

Each limit is a kernel built with mxc: independent chains of one instruction on registers, or loads
of a buffer many times larger than the last-level cache. No C compiler is needed. Instructions that
the CPU lacks are shown as "-".
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, func, math, scf, vector
from programs import Loaded, compile_build, memref, shape
from repetitions import Time, interleave

from mxc.compiler import iree
from mxc.dialects import x86
from mxc.kernels.lowering.index import of
from mxc.kernels.lowering.memory import load_tile, pointer, store_tile
from mxc.passes.kernels.cpu.isa import best_isa, x86_bytes
from mxc.passes.kernels.executables import dispatch, executable, workgroup
from mxc.passes.kernels.vectors import (
    bitcast,
    i8,
    i32,
    index,
    load,
    loop,
    prefetch,
    splat,
)
from mxc.targets.target import target

#: Lanes of a register -> independent chains of an instruction: more than latency times throughput
#: of any of the instructions, and no more than fit in the registers.
CHAINS = {16: 16, 8: 12}
#: Loop iterations of one workgroup, and number of workgroups. A call takes 1 or 2 ms: long beside
#: its overhead, and short enough to fit between two disturbances of a shared machine.
ITERATIONS = 50_000
WORKGROUPS = 16

#: Name of the limit of reading memory, and of its call.
READ = "read"
#: Contiguous bytes that a workgroup reads; cache lines that it reads in an iteration; and distance
#: of its prefetches in cache lines, a little more than that of the hardware prefetcher.
PIECE = 1 << 20
LINES = 4
AHEAD = 32

#: MiB of memory that a call reads: many times the size of the last-level cache.
MEMORY_MIB = 512


@dataclass(frozen=True)
class Limits:
    """Rates that `threads` threads reach: 1e9 operations a second of each instruction, and 1e9
    bytes a second of reads from DRAM.

    A multiplication and an addition are two operations. None: the CPU has no such instruction.
    `vpmaddubsw`: the sequence vpmaddubsw, vpmaddwd, vpaddd, which replaces vpdpbusd on AVX2;
    measured only if the CPU lacks vpdpbusd. `tdpbf16ps`: the rate on tiles that stay the same.
    `loaded_tiles`: the rate of tdpbf16ps on random tiles that are loaded from the nearest cache;
    operands that change take more power, and the clock of the core falls. `dram_read`: the best of
    the reads. `dram_sustained`: their median, the rate that many calls in a row can expect; 0 if
    only the best is known.
    """

    threads: int
    vpdpbusd: float | None
    vpmaddubsw: float | None
    vdpbf16ps: float | None
    fma: float | None
    tdpbf16ps: float | None
    loaded_tiles: float | None
    dram_read: float
    dram_sustained: float = 0.0


#: Builds an instruction from (acc, a, b): returns acc plus products of a and b.
Build = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]


@dataclass(frozen=True)
class Instruction:
    """One instruction, or a short sequence, on registers of `lanes` dwords.

    `feature`: the LLVM feature of CPUs that have it. `operations`: those in each lane. `build`:
    builds it on (acc, a, b), all f32 [lanes].
    """

    name: str
    feature: str
    lanes: int
    operations: int
    build: Build


def _quads(dot: Build, lanes: int) -> Build:
    def build(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        total = dot(bitcast(acc, i32(), lanes), *(bitcast(x, i8(), 4 * lanes) for x in (a, b)))
        return bitcast(total, ir.F32Type.get(), lanes)

    return build


def _dot_avx2(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Build the AVX2 sequence with the bytes of `acc` in place of `b`: LLVM would hoist products of
    loop invariants out of the loop, and only the final addition would be measured."""
    return x86_bytes.dot(acc, a, bitcast(acc, i8(), 32))


def _vdpbf16ps(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    bf16 = ir.BF16Type.get()
    return x86.dot_bf16(acc, bitcast(a, bf16, 32), bitcast(b, bf16, 32))


def _fma(acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return math.fma(a, b, acc)


#: A tuple for each limit: the first of its instructions that the CPU has is measured.
INSTRUCTIONS = (
    (
        Instruction("vpdpbusd", "avx512vnni", 16, 8, _quads(x86.dot_u8i8, 16)),
        Instruction("vpdpbusd", "avxvnni", 8, 8, _quads(x86.dot_u8i8, 8)),
        Instruction("vpmaddubsw", "avx2", 8, 8, _quads(_dot_avx2, 8)),
    ),
    (Instruction("vdpbf16ps", x86.BF16, 16, 4, _vdpbf16ps),),
    (Instruction("fma", "avx512f", 16, 2, _fma), Instruction("fma", "fma", 8, 2, _fma)),
)


#: Limit of AMX's dot product of bf16 tiles: its name; operations of one instruction, two for each
#: multiply-add; and chains: the eight tile registers but for two operands.
TILES = "tdpbf16ps"
_TILE_OPERATIONS = 2 * 16 * 16 * 32
_TILE_CHAINS = 6
#: The same limit with operands that change: an iteration loads two tiles of each side for four
#: products. Number of products, and of the distinct tiles of a side, which it cycles through.
LOADED = "tdpbf16ps, loaded"
_LOADED_CHAINS, _LOADED_TILES = 4, 16


class Machine:
    """The compiled kernels of the limits, loaded on a number of threads.

    `calls`: name of a limit -> a call, to be timed alternately with what is compared with it.
    """

    def __init__(self, threads: int, memory_mib: int = MEMORY_MIB) -> None:
        """Compile the kernels, and fill the memory that is read."""
        record = iree.resolve(target("cpu"))
        able = ([x for x in line if record.has_any((x.feature,))] for line in INSTRUCTIONS)
        present = [line[0] for line in able if line]
        self._operations = {
            each.name: CHAINS[each.lanes] * each.lanes * each.operations for each in present
        }
        tiles = best_isa(record) == "amx-bf16"
        code = _code(tuple(present), (memory_mib << 20) // PIECE, tiles)
        self.threads = threads
        self._memory = memory_mib << 20
        loaded = Loaded(code, {}, threads)
        seed = loaded.put(np.full(32, 3.0, np.float32))
        self.calls = {each.name: loaded.prepare(each.name, seed) for each in present}
        if tiles:
            self.calls[TILES] = loaded.prepare(TILES, seed)
            drawn = np.random.default_rng(0).normal(size=2 * _LOADED_TILES * 512)
            halves = drawn.astype(ml_dtypes.bfloat16).view(np.float32)
            self.calls[LOADED] = loaded.prepare(LOADED, loaded.put(halves))
        # All values differ: pages of equal contents could share one page of physical memory.
        words = np.arange(self._memory // 4, dtype=np.int32).reshape(-1, PIECE // 64, 16)
        self.calls[READ] = loaded.prepare(READ, loaded.put(words))

    def rate(self, name: str, seconds: float) -> float:
        """Return the rate of a call of `name` that took `seconds`: 1e9 operations a second, or 1e9
        bytes a second for READ."""
        done = self._memory
        if name in (TILES, LOADED):
            chains = _TILE_CHAINS if name == TILES else _LOADED_CHAINS
            done = WORKGROUPS * ITERATIONS // 16 * chains * _TILE_OPERATIONS
        elif name != READ:
            done = WORKGROUPS * ITERATIONS * self._operations[name]
        return done / seconds / 1e9

    def best_rate(self, names: Iterable[str], times: Mapping[str, Time]) -> float | None:
        """Return the highest rate of some limits; None if `times` has none of them."""
        found = (self.rate(name, times[name].least) for name in names if name in times)
        return max(found, default=None)

    def limits(self, seconds: Mapping[str, float]) -> Limits:
        """Return the limits that follow from the least time of each of `calls`."""
        rates = {name: self.rate(name, time) for name, time in seconds.items()}
        return Limits(
            threads=self.threads,
            vpdpbusd=rates.get("vpdpbusd"),
            vpmaddubsw=rates.get("vpmaddubsw"),
            vdpbf16ps=rates.get("vdpbf16ps"),
            fma=rates.get("fma"),
            tdpbf16ps=rates.get(TILES),
            loaded_tiles=rates.get(LOADED),
            dram_read=rates[READ],
        )

    def measure(self, seconds: float) -> Limits:
        """Measure the limits alone, for about `seconds`: half of it is reads."""
        peaks = {name: call for name, call in self.calls.items() if name != READ}
        found = interleave(peaks, seconds=seconds / 2, rounds=5, most=2000, settle=0)
        found |= interleave({READ: self.calls[READ]}, seconds=seconds / 2, rounds=5, settle=0)
        best = self.limits({name: time.least for name, time in found.items()})
        return replace(best, dram_sustained=self.rate(READ, found[READ].median))


@functools.cache
def _code(present: tuple[Instruction, ...], pieces: int, tiles: bool) -> bytes:
    return compile_build(lambda parameters: _build(present, pieces, tiles)).code


def _build(present: tuple[Instruction, ...], pieces: int, tiles: bool) -> None:
    """Add a function for each instruction, those of tiles if `tiles`, and @read."""
    f32 = ir.F32Type.get()
    if tiles:
        kinds = [memref([32], f32), memref([WORKGROUPS, _TILE_CHAINS, 16], f32)]
        _function(TILES, kinds, WORKGROUPS, _tiles)
        kinds = [
            memref([2 * _LOADED_TILES * 256], f32), memref([WORKGROUPS, _LOADED_CHAINS, 256], f32)
        ]  # fmt: skip
        _function(LOADED, kinds, WORKGROUPS, _loaded_tiles)
    for each in present:
        kinds = [memref([32], f32), memref([WORKGROUPS, 16], f32)]
        _function(each.name, kinds, WORKGROUPS, _chains(each))
    lines = PIECE // 64
    kinds = [memref([pieces, lines, 16], i32()), memref([pieces, 16], i32())]
    _function(READ, kinds, pieces, _read(lines))


def _function(name: str, kinds: list[ir.Type], workgroups: int, body: Callable[..., None]) -> None:
    """Add a kernel, and a function `name` that dispatches it. `kinds`: argument and result."""
    source, result = (
        shape(*ir.MemRefType(kind).shape, of=ir.MemRefType(kind).element_type) for kind in kinds
    )
    executable(f"{name}_kernel", kinds, lambda _: (workgroups, 1), body)

    def call(argument: ir.Value) -> ir.Value:
        return dispatch(f"{name}_kernel", [argument], [result]).results[0]

    func.FuncOp.from_py_func(source, name=name)(call)


def _chains(instruction: Instruction) -> Callable[[ir.Value, ir.Value], None]:
    def body(seed: ir.Value, result: ir.Value) -> None:
        f32 = ir.F32Type.get()
        lanes = instruction.lanes
        a, b = (load(seed, [index(at)], f32, lanes) for at in (0, 16))
        start = [splat(float(i), f32, lanes) for i in range(CHAINS[lanes])]
        with loop(index(0), index(ITERATIONS), index(1), start) as (_, chains, op):
            scf.YieldOp([instruction.build(chain, a, b) for chain in chains])
        total = op.results[0]
        for chain in list(op.results)[1:]:
            total = arith.addf(total, chain)
        vector.store(total, result, [workgroup(0), index(0)])

    return body


def _tiles(seed: ir.Value, result: ir.Value) -> None:
    """Build the kernel of TILES. Tiles are loaded with stride 0, so that all rows of one are the
    same 64 bytes; chains begin with different bytes."""
    start, bytes_ = pointer(seed), (0, 64, *range(4, 64, 4))
    a, b, *chains = (load_tile(start, at, 0, streamed=False) for at in bytes_[: 2 + _TILE_CHAINS])
    with loop(index(0), index(ITERATIONS // 16), index(1), chains) as (_, sums, op):
        scf.YieldOp([x86.tile_dot_bf16(total, a, b) for total in sums])
    own = arith.muli(workgroup(0), index(_TILE_CHAINS * 64))
    for number, total in enumerate(op.results):
        store_tile(total, pointer(result), of(own) + 64 * number, 0)


def _loaded_tiles(source: ir.Value, result: ir.Value) -> None:
    """Build the kernel of LOADED: an iteration multiplies the next pair of tiles of each side."""
    start, size = pointer(source), 1024
    zeros = [x86.tile_zero() for _ in range(_LOADED_CHAINS)]
    with loop(index(0), index(ITERATIONS // 16), index(1), zeros) as (at, sums, op):
        place = of(at % (_LOADED_TILES // 2)) * (2 * size)
        a0, a1, b0, b1 = (
            load_tile(start, place + side * _LOADED_TILES * size + tile * size, 64, streamed=False)
            for side in range(2)
            for tile in range(2)
        )
        pairs = ((a0, b0), (a0, b1), (a1, b0), (a1, b1))
        scf.YieldOp([x86.tile_dot_bf16(t, *pair) for t, pair in zip(sums, pairs, strict=True)])
    own = of(workgroup(0)) * (_LOADED_CHAINS * size)
    for number, total in enumerate(op.results):
        store_tile(total, pointer(result), own + number * size, 64)


def _read(lines: int) -> Callable[[ir.Value, ir.Value], None]:
    def body(memory: ir.Value, result: ir.Value) -> None:
        piece, zero = workgroup(0), splat(0, i32(), 16)
        with loop(index(0), index(lines), index(LINES), [zero] * LINES) as (line, sums, op):
            for i in range(LINES):
                prefetch(memory, [piece, arith.addi(line, index(AHEAD + i)), index(0)])
            read = [
                load(memory, [piece, arith.addi(line, index(i)), index(0)], i32(), 16)
                for i in range(LINES)
            ]
            scf.YieldOp([arith.xori(*pair) for pair in zip(sums, read, strict=True)])
        total = op.results[0]
        for one in list(op.results)[1:]:
            total = arith.xori(total, one)
        vector.store(total, result, [piece, index(0)])

    return body


def read_limit(threads: int) -> float:
    """Return the median rate of DRAM reads in 1e9 bytes a second, measured for a second by another
    process, so that its memory does not count as this one's."""
    words = ["--threads", str(threads), "--seconds", "2", "--json"]
    run = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=True
    )
    return float(json.loads(run.stdout)[0]["dram_sustained"])


def show(limits: list[Limits]) -> None:
    """Print a table with a row for each limit and a column for each number of threads."""
    print(f"{'machine limits':<28}" + "".join(f"{each.threads:>7} thr" for each in limits))
    rows: dict[str, list[float | None]] = {
        "vpdpbusd, GOP/s": [each.vpdpbusd for each in limits],
        "vpmaddubsw, GOP/s": [each.vpmaddubsw for each in limits],
        "vdpbf16ps, GFLOP/s": [each.vdpbf16ps for each in limits],
        "f32 fma, GFLOP/s": [each.fma for each in limits],
        "tdpbf16ps, GFLOP/s": [each.tdpbf16ps for each in limits],
        "  of random tiles from L1": [each.loaded_tiles for each in limits],
        "DRAM read, GB/s": [each.dram_read for each in limits],
        "median of the readings": [each.dram_sustained or None for each in limits],
    }
    for name, values in rows.items():
        cells = (f"{'-':>11}" if value is None else f"{value:11.1f}" for value in values)
        print(f"{name:<28}" + "".join(cells))


def numbers(text: str) -> list[int]:
    """Parse numbers that are separated by commas."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number of threads")
    parser.add_argument("--memory-mib", type=int, default=MEMORY_MIB, help="that is read")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [
        Machine(threads, options.memory_mib).measure(options.seconds) for threads in options.threads
    ]
    if options.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
