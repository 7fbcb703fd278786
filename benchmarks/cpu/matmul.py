"""Compare products with mxfp4 weights with llama.cpp and with the limits of this machine.

    python benchmarks/cpu/matmul.py [--quick] [--threads 2] [--shapes NxK,..] [--rows M,..]
        [--modes i8,bf16,f32] [--seconds 1] [--no-peer] [--json]

Weights are cold: each call reads more weights than the caches hold. Repetitions of mxc, of the
peer and of the limits alternate, because the speed of a shared machine changes within minutes. The
minimum time of each counts. The exit status is 1 where a row is below its wanted figure, or the
peer is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from contractions import MODES, contraction_program, load_rotation
from ggml import Ggml, PeerMissing, Rotation, version
from limits import READ, TILES, Limits, Machine, numbers, show
from peer import LARGEST_ERROR
from problems import (
    COLD_BYTES,
    ROWS,
    SHAPES,
    Shape,
    Weights,
    draw_activations,
    draw_weights,
    parse_shapes,
    relative_error,
)
from repetitions import Time, interleave
from rows import HEADER, Row, show_row
from stock import Stock, measure_stock, show_stock

from mxc.runtime.other_load import OtherLoad

#: Activation mode -> largest relative root mean square error (`relative_error`). f32: that of sums;
#: bf16: activations are rounded by 2^-9 at most; i8: 8 bits and a scale per block, as in the peer.
ERRORS = {"f32": 1e-6, "bf16": 2.5e-3, "i8": LARGEST_ERROR}

#: Activation mode -> the instructions that may compute its products; the fastest is the limit.
PEAKS = {
    "i8": ("vpdpbusd", "vpmaddubsw"),
    "bf16": ("tdpbf16ps", "vdpbf16ps", "fma"),
    "f32": ("fma",),
}

QUICK_SHAPES = (Shape(2880, 2880),)
QUICK_ROWS = (1, 8, 128)


@dataclass
class Bench:
    """One run: its options, its peer if any, and `best`, the least time of each limit so far."""

    machine: Machine
    library: Ggml | None
    modes: list[str]
    seconds: float
    cold_bytes: int = COLD_BYTES
    best: dict[str, float] = field(default_factory=dict)

    def measure(self, shape: Shape, rows: list[int]) -> Iterator[Row]:
        """Yield the rows of one shape. Raises AssertionError if a product is wrong."""
        weights = draw_weights(shape)
        chains = {m: shape.copies(m, self.cold_bytes) for m in rows}
        most = max(chains.values())
        loaded = {
            mode: load_rotation(
                contraction_program(mode, shape, chains), weights, most, self.machine.threads
            )
            for mode in self.modes
        }
        with self._rotation(shape, weights, most) as rotation:
            for m, copies in chains.items():
                x = draw_activations(m, shape.k)
                calls: dict[str, Callable[[], Any]] = {}
                errors = {}
                for mode, program in loaded.items():
                    given = program.put(x)
                    found = program.read(program.prepare(f"one_{m}", given)())
                    errors[mode] = relative_error(found, x, weights)
                    assert errors[mode] < ERRORS[mode], f"{shape}, {m} rows, {mode}: {errors}"
                    calls[mode] = program.prepare(f"chain_{m}", given)
                if rotation is not None:
                    calls["peer"], read = rotation.multiply(x, copies)
                    calls["peer"]()
                    errors["peer"] = relative_error(read(), x, weights)
                    assert errors["peer"] < LARGEST_ERROR, f"{shape}, {m} rows, peer: {errors}"
                times = self._alternate(calls, m, copies)
                for mode in self.modes:
                    yield Row(
                        shape=shape,
                        m=m,
                        mode=mode,
                        ours=times[mode],
                        peer=times.get("peer"),
                        error=errors[mode],
                        peer_error=errors.get("peer"),
                        limit=self.machine.best_rate(limits_of(mode, m), times),
                        tiles=TILES in self.machine.calls,
                    )

    def limits(self) -> Limits:
        """Return the best of each limit in this run."""
        return self.machine.limits(self.best)

    def measure_limits(self) -> None:
        """Measure all limits alternately, without products between them."""
        self._keep(interleave(self.machine.calls, seconds=self.seconds, rounds=5, settle=0))

    def _alternate(
        self, calls: Mapping[str, Callable[[], Any]], m: int, copies: int
    ) -> dict[str, Time]:
        """Time chains of `copies` products of `m` rows, alternately with the limits that apply.

        Returns the time of one product of each of `calls`, and of a call of each limit, by name.
        """
        names = {name for mode in self.modes for name in limits_of(mode, m)}
        limits = {name: call for name, call in self.machine.calls.items() if name in names}
        times = interleave({**limits, **calls}, seconds=self.seconds)
        self._keep({name: times[name] for name in limits})
        return {name: times[name].each_of(copies) for name in calls} | {
            name: times[name] for name in limits
        }

    def _keep(self, times: Mapping[str, Time]) -> None:
        for name, time in times.items():
            self.best[name] = min(self.best.get(name, time.least), time.least)

    @contextlib.contextmanager
    def _rotation(self, shape: Shape, weights: Weights, copies: int) -> Iterator[Rotation | None]:
        if self.library is None:
            yield None
            return
        with Rotation(self.library, shape.n, shape.k, weights.ggml, copies) as rotation:
            yield rotation


def limits_of(mode: str, m: int) -> tuple[str, ...]:
    """Return the names of the limits of a product of `m` rows, of which the highest counts."""
    return (READ,) if m == 1 else PEAKS[mode]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one shape, fewer rows, less time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", type=parse_shapes, help="NxK,..")
    parser.add_argument("--rows", type=numbers, help="of activations, separated by commas")
    parser.add_argument("--modes", default="i8,bf16,f32", help=f"of {', '.join(MODES)}")
    parser.add_argument("--seconds", type=float, help="for each product")
    parser.add_argument("--memory-mib", type=int, default=512, help="read for the DRAM limit")
    parser.add_argument("--cold-mib", type=int, default=COLD_BYTES >> 20, help="of weights")
    parser.add_argument("--no-peer", action="store_true", help="measure without llama.cpp")
    parser.add_argument("--no-stock", action="store_true", help="leave out f4 x f4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.shapes = options.shapes or list(QUICK_SHAPES if options.quick else SHAPES)
    options.rows = options.rows or list(QUICK_ROWS if options.quick else ROWS)
    options.seconds = options.seconds or (0.5 if options.quick else 1.5)
    options.modes = options.modes.split(",")
    if unknown := set(options.modes) - set(MODES):
        parser.error(f"--modes: {', '.join(sorted(unknown))} not in {', '.join(MODES)}")
    return options


def main() -> int:
    options = parse()
    others = OtherLoad()
    try:
        library = None if options.no_peer else Ggml(options.threads)
        machine = Machine(options.threads, options.memory_mib)
        bench = Bench(machine, library, options.modes, options.seconds, options.cold_mib << 20)
        bench.measure_limits()
        rows: list[Row] = []
        for shape in options.shapes:
            for row in bench.measure(shape, options.rows):
                rows.append(row)
                if sys.stderr.isatty():
                    print(f"{row.shape} {row.m} {row.mode}", file=sys.stderr)
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    stock = None if options.no_stock else measure_stock(options.threads, options.seconds)
    limits = bench.limits()
    if options.json:
        print(
            json.dumps(
                {
                    "peer": None if library is None else version(),
                    "limits": asdict(limits),
                    "rows": [row.to_dict() for row in rows],
                    "f4_by_f4": stock and stock.to_dict(),
                    "other_cores": others.cores(),
                }
            )
        )
    else:
        _print(rows, limits, stock, "none" if library is None else version())
        print(f"\nothers used {others}")
    failed = any(row.passes is False for row in rows)
    return int(failed or (stock is not None and not stock.passes))


def _print(rows: list[Row], limits: Limits, stock: Stock | None, peer: str) -> None:
    show([limits])
    print(f"\npeer: llama-cpp-python {peer}; weights cold, {limits.threads} threads")
    print(HEADER)
    for row in rows:
        show_row(row)
    if stock is not None:
        print()
        show_stock(stock)


if __name__ == "__main__":
    sys.exit(main())
