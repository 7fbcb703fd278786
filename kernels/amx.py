"""The contraction on the tile unit of AMX (Intel): a schedule, step by step.

A workgroup decodes a chunk of K of two panels of weights to bf16, once for all of its rows, into
scratch that stays in the nearest cache. It then multiplies tiles of 32 rows by 32 columns with two
tile registers for A, two for B and four for sums. The sums wait in scratch from chunk to chunk.
While the last rows are multiplied, the next chunk is decoded over the tiles that are not needed any
more: vector units decode while the tile unit multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator

from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import BF16, STEP, decoder, panel_layout
from mxc.kernels.language import Kernel
from mxc.kernels.layout import Layout, layout
from mxc.kernels.schedule import decode, decode_early, finish_early, keep, over, place, stage, use
from mxc.kernels.tiles import TILE_C, tdpbf16ps, tile_a

#: Rows and columns of a tile.
TILE = 16
#: Elements along K that are decoded at once: two panels of 256 elements are 16 KiB of bf16.
CHUNK = 256
#: Most rows of a workgroup: their sums are 16 KiB, and stay in L2 while the loop goes over columns.
ROWS = 128
#: Bytes of activations of a workgroup, of 2 MiB of L2, that stay there while the loop goes over
#: columns.
ACTIVATIONS = 1280 << 10
#: Columns of a workgroup.
COLUMNS = 64
#: Prefetch distance of weights, in elements along K.
AHEAD = 512


def steps(
    contraction: ContractionShape, rows: int | None = None, pitch: int | None = None
) -> Iterator[tuple[str, Kernel]]:
    """Yield a description and the kernel after each step of the schedule. `rows`: rows of a
    workgroup; `pitch`: K steps of a row of A in memory."""
    kernel = contraction.kernel
    yield "what is computed", kernel
    scales = "SB" if contraction.scales is not None else None
    kernel = decode(kernel, "B", scales, "W", BF16)
    yield "weights become bf16, scales and all", kernel
    kernel = _tiles(contraction, kernel, rows or most_rows(contraction))
    yield "a chunk of weights for all rows", kernel
    kernel = decode_early(kernel, "W=", ("k", _chunk(contraction)), "m")
    yield "the next chunk beside the products of the last rows", kernel
    few = contraction.rows is not None and TILE < contraction.rows <= 2 * TILE
    # Four sums stay in tiles while weights are decoded; with one row of tiles, this gains nothing.
    two = _tiles_across(contraction) == 2
    all_chunks = few and contraction.choice != "sorted" and two
    if two and not all_chunks:
        kernel = finish_early(kernel, "Y=", ("k", _chunk(contraction)), "m")
        yield "results as soon as their sums are complete", kernel
    raw = panel_layout(contraction.weights.bits)
    weights = raw.paired()
    kernel = _places(contraction, kernel, raw, pitch)
    yield "where everything lies", kernel
    kernel = stage(kernel, "A", "a", "T+=", "tile", tile_a(weights))
    kernel = stage(kernel, "W", "w", "T+=", "tile", weights)
    yield "operands in tile registers", kernel
    by = _chunk(contraction) if all_chunks else STEP
    kernel = keep(kernel, "T", "t", ("k", by), "tile", TILE_C)
    yield "sums too, along " + ("K" if all_chunks else "a chunk"), kernel
    atom = decoder(contraction.weights, contraction.scales, contraction.block)
    kernel = use(kernel, "W=", atom, AHEAD)
    yield "instructions", use(kernel, "t+=", tdpbf16ps(weights))


def scheduled(
    contraction: ContractionShape, rows: int | None = None, pitch: int | None = None
) -> Kernel:
    """The kernel after its last step."""
    *_, (_, kernel) = steps(contraction, rows, pitch)
    return kernel


def _tiles(contraction: ContractionShape, kernel: Kernel, rows: int) -> Kernel:
    every = "T=0 W= T+= Y="
    halves, together = contraction.halves, contraction.together
    width = _width(contraction)
    kernel = over(kernel, "g", 1, every, grid=True)
    kernel = over(kernel, "m", rows, every, grid=contraction.choice != "sorted")
    kernel = over(kernel, "n", COLUMNS // halves, every, grid=True)
    kernel = over(kernel, "n", width, every)
    kernel = over(kernel, "m", TILE, "T=0")
    kernel = over(kernel, "k", _chunk(contraction), "W= T+=")
    for axis, by in (*((("h", 1),) if halves > 1 else ()), ("n", TILE), ("k", STEP)):
        kernel = over(kernel, axis, by, "W=")
    if _tiles_across(contraction) > 2:
        kernel = over(kernel, "n", TILE, "T+=")
    kernel = over(kernel, "m", 2 * TILE, "T+=", rest=(TILE,))
    kernel = over(kernel, "k", STEP, "T+=")
    if contraction.planes > 1:
        kernel = over(kernel, "p", 1, "T+=")
    return over(over(kernel, "m", TILE, "Y="), "n", together, "Y=")


def _width(contraction: ContractionShape) -> int:
    """Columns of the result that are computed at once: two panels of weights, or the columns that
    are finished together if these are more."""
    return max(2 * TILE // contraction.halves, contraction.together)


def _tiles_across(contraction: ContractionShape) -> int:
    """Number of tiles of weights, over both halves of a gate, for `_width` result columns."""
    return _width(contraction) * contraction.halves // TILE


def _chunk(contraction: ContractionShape) -> int:
    """Elements along K that are decoded at once; the size of scratch is the same for all."""
    return CHUNK * 2 // _tiles_across(contraction)


def most_rows(contraction: ContractionShape) -> int:
    """Most rows of a workgroup whose scratch, with the weights, is 32 KiB. Columns that are
    finished together need a part of it. Activations are also kept within `ACTIVATIONS` bytes."""
    rows = ROWS * 2 // _tiles_across(contraction)
    rows = rows if contraction.together == TILE else rows - TILE
    fitting = ACTIVATIONS // (2 * contraction.planes * contraction.depth) // TILE * TILE
    return min(rows, max(fitting, 2 * TILE))


def _places(
    contraction: ContractionShape, kernel: Kernel, raw: Layout, pitch: int | None
) -> Kernel:
    weights = raw.paired()
    # Memory is padded to whole tiles, and the padding does not reach results.
    kernel = place(kernel, "B", "global", raw.in_memory())
    if contraction.scales is not None:
        kernel = place(kernel, "SB", "global", layout("n0 n1 n2 n3"))
    order = Layout(item=(*weights.item, *weights.register))
    wide = {} if pitch is None else {"k": pitch}
    kernel = place(kernel, "A", "global", order, wide, {"m": "padded"})
    kernel = place(kernel, "Y", "global", Layout(), guards={"m": "masked", "n": "masked"})
    kernel = place(kernel, "W", "stack", weights, slots={"k": _chunk(contraction)})
    return place(kernel, "T", "stack", TILE_C)
