"""Compare products with mxfp4 weights on AMX tiles with their peak, with AVX-512 and llama.cpp.

    python benchmarks/cpu/tiles.py [--shapes 4096x4096,..] [--rows 1,8,..] [--modes bf16,f32]
        [--threads 2] [--seconds 2] [--no-peer] [--json]

Activations are bf16 or f32. All candidates alternate, and the minimum time of each counts. "of
peak" is the share of the peak of tiles that stay the same, "loaded" the share of the peak of random
tiles from the nearest cache: tiles that change take more power, and the clock falls by a fifth.
Build llama.cpp without its AMX kernels, which crash on a hidden size of 2880 (docs/benchmarks.md).
On a machine without AMX, or without permission to use it, the script says so and the exit status is
0. It is 1 if a row is below its wanted figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from contractions import contraction_program, load_rotation
from ggml import Ggml, PeerMissing, Rotation, version
from limits import LOADED, TILES, Machine, numbers
from matmul import ERRORS
from problems import Shape, draw_activations, draw_weights, parse_shapes, relative_error
from repetitions import interleave

from mxc.compiler import iree
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.runtime.other_load import OtherLoad
from mxc.targets.target import target

#: Target without AMX: its kernels are the AVX-512 ones, which a machine with AMX also runs.
VECTORS = "cpu:icelake-server"

#: Number of rows -> wanted share of the peak of tiles for bf16, and ratio to llama.cpp's speed.
WANTED = {32: (0.25, 0.0), 128: (0.6, 10.0), 512: (0.6, 10.0)}


@dataclass(frozen=True)
class Row:
    """One product: milliseconds on tiles (`ms`), with AVX-512 (`vectors_ms`) and of the peer.

    `gflops`: GFLOP/s on tiles. `peak`, `loaded`: GFLOP/s of tiles that stay the same, and of random
    tiles from the nearest cache, in the same repetitions. `error`: relative error on tiles.
    """

    shape: str
    m: int
    mode: str
    ms: float
    vectors_ms: float
    peer_ms: float | None
    gflops: float
    peak: float
    loaded: float
    error: float

    @property
    def passes(self) -> bool | None:
        """Whether the row is as wanted; None if nothing is wanted."""
        if self.mode != "bf16" or self.m not in WANTED:
            return None
        share, times = WANTED[self.m]
        beside = self.peer_ms is None or self.peer_ms >= times * self.ms
        return self.gflops >= share * self.peak and beside


def measure(options: argparse.Namespace, library: Ggml | None) -> Iterator[Row]:
    """Yield the rows, shape by shape. Raises AssertionError if a product is wrong."""
    machine = Machine(options.threads, 64)
    for shape in options.shapes:
        weights = draw_weights(shape)
        chains = {m: shape.copies(m, options.cold_mib << 20) for m in options.rows}
        most = max(chains.values())
        programs = {
            (mode, name): load_rotation(
                contraction_program(mode, shape, chains, cpu), weights, most, options.threads
            )
            for mode in options.modes
            for name, cpu in (("tiles", "cpu"), ("vectors", VECTORS))
        }
        peer: Any = nullcontext() if library is None else _rotation(library, shape, weights, most)
        with peer as rotation:
            for m, copies in chains.items():
                x = draw_activations(m, shape.k)
                calls: dict[Any, Callable[[], Any]] = {
                    name: machine.calls[name] for name in (TILES, LOADED)
                }
                errors = {}
                for key, program in programs.items():
                    given = program.put(x)
                    found = program.read(program.prepare(f"one_{m}", given)())
                    errors[key] = relative_error(found, x, weights)
                    assert errors[key] < ERRORS[key[0]], f"{shape}, {m} rows, {key}: {errors[key]}"
                    calls[key] = program.prepare(f"chain_{m}", given)
                if rotation is not None:
                    calls["peer"], _ = rotation.multiply(x, copies)
                times = interleave(calls, seconds=options.seconds)
                least = {key: time.least / copies for key, time in times.items()}
                for mode in options.modes:
                    yield Row(
                        shape=str(shape),
                        m=m,
                        mode=mode,
                        ms=1e3 * least[mode, "tiles"],
                        vectors_ms=1e3 * least[mode, "vectors"],
                        peer_ms=1e3 * least["peer"] if rotation is not None else None,
                        gflops=shape.operations(m) / least[mode, "tiles"] / 1e9,
                        peak=machine.rate(TILES, times[TILES].least),
                        loaded=machine.rate(LOADED, times[LOADED].least),
                        error=errors[mode, "tiles"],
                    )


def _rotation(library: Ggml, shape: Shape, weights: Any, copies: int) -> Rotation:
    return Rotation(library, shape.n, shape.k, weights.ggml, copies)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", type=parse_shapes, default=[Shape(4096, 4096)], help="NxK,..")
    parser.add_argument("--rows", type=numbers, default=[1, 8, 32, 128, 512])
    parser.add_argument("--modes", default="bf16,f32", help="of bf16, f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number of rows")
    parser.add_argument("--cold-mib", type=int, default=128, help="of weights")
    parser.add_argument("--no-peer", action="store_true", help="measure without llama.cpp")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    if unknown := set(options.modes) - {"bf16", "f32"}:
        parser.error(f"--modes: {', '.join(sorted(unknown))} not in bf16, f32")
    return options


def main() -> int:
    options = parse()
    if best_isa(iree.resolve(target("cpu"))) != "amx-bf16":
        print("this machine has no tiles of AMX, or gives none to a process: nothing to measure")
        return 0
    others = OtherLoad()
    try:
        library = None if options.no_peer else Ggml(options.threads)
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    rows = list(measure(options, library))
    if options.json:
        listed = [{**asdict(row), "passes": row.passes} for row in rows]
        peer = None if library is None else version()
        print(json.dumps({"peer": peer, "rows": listed, "other_cores": others.cores()}))
    else:
        _print(rows, others)
    return int(any(row.passes is False for row in rows))


def _print(rows: list[Row], others: OtherLoad) -> None:
    print(
        f"{'n x k':>11}{'m':>5} {'mode':<5}{'tiles ms':>10}{'GFLOP/s':>9}{'of peak':>9}"
        f"{'loaded':>8}{'AVX-512 ms':>11}{'times':>7}{'peer ms':>9}{'times':>7}{'error':>9}"
    )
    for row in rows:
        verdict = {True: "pass", False: "FAIL", None: ""}[row.passes]
        peer = f"{'-':>9}{'-':>7}"
        if row.peer_ms is not None:
            peer = f"{row.peer_ms:9.3f}{row.peer_ms / row.ms:7.1f}"
        print(
            f"{row.shape:>11}{row.m:5} {row.mode:<5}{row.ms:10.3f}{row.gflops:9.0f}"
            f"{row.gflops / row.peak:9.0%}{row.gflops / row.loaded:8.0%}{row.vectors_ms:11.3f}"
            f"{row.vectors_ms / row.ms:7.1f}{peer}{row.error:9.1e}  {verdict}"
        )
    print(f"\nothers used {others}")


if __name__ == "__main__":
    sys.exit(main())
