"""Measure the peer alone: llama.cpp's mxfp4 products with repacked weights from memory.

    python benchmarks/cpu/peer.py [--shapes 4096x4096,..] [--rows 1,8,..] [--threads 2] [--json]

The library is that of llama-cpp-python (the extra `bench`), built for this CPU. Activations are
f32, which llama.cpp rounds to 8 bits. Each product is checked against float64.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ggml import Ggml, PeerMissing, Rotation, version
from limits import numbers
from problems import (
    ROWS,
    SHAPES,
    Shape,
    draw_activations,
    draw_weights,
    parse_shapes,
    relative_error,
)
from repetitions import Time, interleave

#: Largest relative error of a product. Activations rounded to 8 bits, with a scale for each block
#: of 32, give about 5e-3; a wrong product gives about 1.
LARGEST_ERROR = 0.02


def measure(
    library: Ggml, shape: Shape, rows: list[int], *, seconds: float
) -> dict[int, tuple[Time, float]]:
    """Return for each number of rows the time of one product and its relative error.

    Raises AssertionError if a product is wrong.
    """
    weights = draw_weights(shape)
    found = {}
    most = max(shape.copies(m) for m in rows)
    with Rotation(library, shape.n, shape.k, weights.ggml, most) as rotation:
        for m in rows:
            x, copies = draw_activations(m, shape.k), shape.copies(m)
            compute, read = rotation.multiply(x, copies)
            time = interleave({"peer": compute}, seconds=seconds, settle=0)["peer"]
            error = relative_error(read(), x, weights)
            assert error < LARGEST_ERROR, f"ggml: {shape}, {m} rows: error {error}"
            found[m] = (time.each_of(copies), error)
    return found


def rows_of(shape: Shape, found: dict[int, tuple[Time, float]]) -> list[dict[str, Any]]:
    """Return the figures of each product that are printed."""
    return [
        {
            "shape": str(shape),
            "m": m,
            "copies": shape.copies(m),
            "ms": 1e3 * time.least,
            "median_ms": 1e3 * time.median,
            "gflops": shape.operations(m) / time.least / 1e9,
            "gb_per_second": shape.bytes / time.least / 1e9,
            "error": error,
        }
        for m, (time, error) in found.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", type=parse_shapes, default=list(SHAPES), help="NxK,..")
    parser.add_argument("--rows", type=numbers, default=list(ROWS), help="of activations")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each product")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        library = Ggml(options.threads)
        rows = []
        for shape in options.shapes:
            rows += rows_of(shape, measure(library, shape, options.rows, seconds=options.seconds))
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"version": version(), "features": library.features, "rows": rows}))
        return 0
    print(f"llama-cpp-python {version()}, {', '.join(library.features)}, {options.threads} threads")
    print(f"{'n x k':>12}{'m':>6}{'ms':>10}{'median':>10}{'GFLOP/s':>10}{'GB/s':>8}{'error':>10}")
    for row in rows:
        print(
            f"{row['shape']:>12}{row['m']:6}{row['ms']:10.3f}{row['median_ms']:10.3f}"
            f"{row['gflops']:10.0f}{row['gb_per_second']:8.1f}{row['error']:10.1e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
