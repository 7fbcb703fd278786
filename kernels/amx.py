"""The contraction on the tile unit of AMX (Intel): a schedule, step by step.

A workgroup decodes a chunk of K of two panels of weights to bf16, once for all of its rows, into
scratch that stays in the nearest cache. It then multiplies tiles of 32 rows by 32 columns with two
tile registers for A, two for B and four for sums. The sums wait in scratch from chunk to chunk.
While the last rows are multiplied, the next chunk is decoded over the tiles that are not needed any
more: vector units decode while the tile unit multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import BF16, STEP, decoder, panel_layout
from mxc.kernels.language import Kernel
from mxc.kernels.layout import Layout, layout
from mxc.kernels.schedule import decode, decode_early, finish_early, keep, over, place, stage, use
from mxc.kernels.tiles import TILE_C, tdpbf16ps, tile_a

#: Rows and columns of a tile.
TILE = 16
#: Most bytes of activations of a workgroup. They stay in the L2 cache, of 2 MiB, while the loop
#: goes over columns.
_ACTIVATIONS = 1280 << 10


@dataclass(frozen=True)
class TilePlan:
    """The sizes of a schedule. None of them changes the order in which a sum is added.

    `rows`, `columns`: of a workgroup; columns are those of the weights, over both halves of a gate.
    The sums of the rows wait in scratch. `chunk`: elements along K that are decoded to scratch at
    once. `ahead`: prefetch distance of weights, in elements along K.
    """

    rows: int
    columns: int
    chunk: int
    ahead: int

    def __str__(self) -> str:
        """A short text that distinguishes this plan from other plans of the same product."""
        return (
            f"{self.rows} rows x {self.columns} columns, {self.chunk} k decoded at once, "
            f"asked for {self.ahead} k ahead"
        )


#: Plans for two tiles of columns: first the one that was measured to be the fastest, then others.
#: Scratch has 32 KiB at most: 64 bytes of decoded weights for each element of a chunk, and 128
#: bytes of sums for each row.
_PLANS = (
    TilePlan(128, 64, 256, 512),
    TilePlan(128, 64, 256, 1024),
    TilePlan(128, 64, 256, 256),
    TilePlan(128, 128, 256, 512),
    TilePlan(128, 32, 256, 512),
    TilePlan(192, 64, 128, 512),
    TilePlan(128, 64, 128, 512),
    TilePlan(64, 64, 384, 512),
)


def plans(contraction: ContractionShape) -> list[TilePlan]:
    """The plans of a contraction: the one that is used by default, then the others."""
    across, least = _tiles_across(contraction), _width(contraction) * contraction.halves
    fitted = [
        replace(
            each, rows=_rows(contraction, each.rows * 2 // across), chunk=each.chunk * 2 // across
        )
        for each in _PLANS
        if each.columns >= least
    ]
    return list(dict.fromkeys(fitted))


def steps(
    contraction: ContractionShape, plan: TilePlan | None = None, pitch: int | None = None
) -> Iterator[tuple[str, Kernel]]:
    """Yield a description and the kernel after each step of the schedule. `plan`: the first of
    `plans` by default. `pitch`: K steps of a row of A in memory, where these are more than K has.
    """
    plan = plan or plans(contraction)[0]
    kernel = contraction.kernel
    yield "what is computed", kernel
    scales = "SB" if contraction.scales is not None else None
    kernel = decode(kernel, "B", scales, "W", BF16)
    yield "weights become bf16, scales and all", kernel
    kernel = _tiles(contraction, kernel, plan)
    yield "a chunk of weights for all rows", kernel
    kernel = decode_early(kernel, "W=", ("k", plan.chunk), "m")
    yield "the next chunk beside the products of the last rows", kernel
    few = contraction.rows is not None and TILE < contraction.rows <= 2 * TILE
    # With 17 to 32 rows, the four sums stay in tile registers for all of K, also while weights are
    # decoded. With one row of tiles, this gains nothing.
    two = _tiles_across(contraction) == 2
    all_chunks = few and contraction.choice != "sorted" and two
    if two and not all_chunks:
        kernel = finish_early(kernel, "Y=", ("k", plan.chunk), "m")
        yield "results as soon as their sums are complete", kernel
    raw = panel_layout(contraction.weights.bits)
    weights = raw.paired()
    kernel = _places(contraction, kernel, raw, pitch)
    kernel = place(kernel, "W", "stack", weights, slots={"k": plan.chunk})
    yield "where everything lies", kernel
    kernel = stage(kernel, "A", "a", "T+=", "tile", tile_a(weights))
    kernel = stage(kernel, "W", "w", "T+=", "tile", weights)
    yield "operands in tile registers", kernel
    by = plan.chunk if all_chunks else STEP
    kernel = keep(kernel, "T", "t", ("k", by), "tile", TILE_C)
    yield "sums too, along " + ("K" if all_chunks else "a chunk"), kernel
    atom = decoder(contraction.weights, contraction.scales, contraction.block)
    kernel = use(kernel, "W=", atom, plan.ahead)
    yield "instructions", use(kernel, "t+=", tdpbf16ps(weights))


def scheduled(
    contraction: ContractionShape, plan: TilePlan | None = None, pitch: int | None = None
) -> Kernel:
    """The kernel after its last step."""
    *_, (_, kernel) = steps(contraction, plan, pitch)
    return kernel


def _tiles(contraction: ContractionShape, kernel: Kernel, plan: TilePlan) -> Kernel:
    every = "T=0 W= T+= Y="
    halves, together = contraction.halves, contraction.together
    width = _width(contraction)
    kernel = over(kernel, "g", 1, every, grid=True)
    kernel = over(kernel, "m", plan.rows, every, grid=contraction.choice != "sorted")
    kernel = over(kernel, "n", plan.columns // halves, every, grid=True)
    kernel = over(kernel, "n", width, every)
    kernel = over(kernel, "m", TILE, "T=0")
    kernel = over(kernel, "k", plan.chunk, "W= T+=")
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


def _rows(contraction: ContractionShape, most: int) -> int:
    """Rows of a workgroup: at most `most`, about equally many in each workgroup, and so few that
    their activations take at most `_ACTIVATIONS` bytes, but not fewer than 32. Columns that are
    finished together take scratch of their own, in place of the sums of 16 rows."""
    most = most if contraction.together == TILE else most - TILE
    fitting = _ACTIVATIONS // (2 * contraction.planes * contraction.depth) // TILE * TILE
    most = min(most, max(fitting, 2 * TILE))
    if contraction.rows is None:
        return most
    parts = -(-contraction.rows // most)
    return -(-contraction.rows // (parts * TILE)) * TILE


def _places(
    contraction: ContractionShape, kernel: Kernel, raw: Layout, pitch: int | None
) -> Kernel:
    weights = raw.paired()
    # Memory is padded to whole tiles. The padding does not reach results.
    kernel = place(kernel, "B", "global", raw.in_memory())
    if contraction.scales is not None:
        kernel = place(kernel, "SB", "global", layout("n0 n1 n2 n3"))
    order = Layout(item=(*weights.item, *weights.register))
    wide = {} if pitch is None else {"k": pitch}
    kernel = place(kernel, "A", "global", order, wide, {"m": "padded"})
    kernel = place(kernel, "Y", "global", Layout(), guards={"m": "masked", "n": "masked"})
    return place(kernel, "T", "stack", TILE_C)
