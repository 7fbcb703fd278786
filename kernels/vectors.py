"""The contraction on vector registers: a schedule, step by step, for every instruction set.

A register holds one column per lane. A tile of rows by registers of columns keeps its sums in
registers and advances along K block by block: weights are decoded once and multiplied by every row.
Where decoding is expensive, a chunk of K is first decoded to scratch, once for all tiles of rows,
and the sums of these tiles wait in scratch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import F32, I32, panel_layout
from mxc.kernels.language import Array, Chains, Element, Guard, Kernel
from mxc.kernels.layout import Kind, Layout
from mxc.kernels.registers import columns, decoder, dot, factors, scale, sums_of, weights_of
from mxc.kernels.schedule import (
    block_sums,
    chained,
    decode,
    keep,
    of_type,
    over,
    place,
    use,
    wait,
)

#: Columns of a panel of weights.
_PANEL = 16
#: Bits of a code that panels store in two planes, and other packings as a stream of bits.
_PLANES = 6


@dataclass(frozen=True)
class VectorPlan:
    """The tile sizes and choices of a schedule for one machine.

    `kind`, `lanes`: of the dot product. `rows`, `columns`: of a tile of the result. `rests`: rows
    of the lower tiles at the end. `rows_a_workgroup`: rows whose activations stay in the cache and
    whose sums wait in scratch; None for sorted rows that need no such loop. `columns_a_workgroup`:
    columns of the result that a workgroup computes. `ahead`: prefetch distance of weights, in
    elements along K. `staged`: elements along K that are decoded to scratch at once; 0 if each tile
    decodes for itself. `chains`: copies of sums. `weights`: the type that codes are decoded to.
    `rounded`: whether weights are multiplied by their scales and rounded, instead of the sums being
    scaled. `blocks`: whether the result is rounded to MX blocks of `ContractionShape.together`
    columns. `packed`: whether weights lie in panels. `alone`: the plan of workgroups with one row,
    if the number of rows is known only at the call; it adds in the same order, so that the bits of
    a row do not depend on other rows.
    """

    kind: Kind
    lanes: int
    rows: int
    columns: int
    weights: Element
    chains: Chains
    rests: tuple[int, ...] = ()
    rows_a_workgroup: int | None = None
    columns_a_workgroup: int = 64
    ahead: int = 0
    staged: int = 0
    rounded: bool = False
    blocks: bool = False
    packed: bool = True
    alone: VectorPlan | None = None

    def __str__(self) -> str:
        """A short text that distinguishes this plan from other plans of the same dot product."""
        text = f"tiles of {self.rows} x {self.columns} in {self.columns_a_workgroup} columns"
        return text + (f", {self.staged} k decoded at once" if self.staged else "")


def steps(contraction: ContractionShape, plan: VectorPlan) -> Iterator[tuple[str, Kernel]]:
    """Yield a description and the kernel after each step of the schedule."""
    kernel = contraction.kernel
    yield "what is computed", kernel
    own = _scales(contraction, plan)
    element = plan.weights
    if element.excess:
        element = replace(element, name="i8", excess=0, numpy=np.int8)
    kernel = decode(kernel, "B", "SB" if plan.rounded else None, "W", element)
    if plan.staged and "SB" in own:
        kernel = decode(kernel, "SB", None, "SW", F32)
        # One entry per K step, even where a scale covers several steps: a chunk may begin with any
        # of them.
        scales = replace(kernel.arrays["SW"], grain={"k": contraction.step})
        kernel = kernel.with_arrays(scales)
        own = tuple("SW" if name == "SB" else name for name in own)
    if plan.blocks:
        kernel = wait(kernel, "Y", "Z")
    yield "weights become operands", kernel
    kernel = _tiles(contraction, plan, kernel)
    yield "tiles of rows and columns", kernel
    if own:
        kernel = _blocks(contraction, plan, kernel, own)
        yield "sums of a block, which are scaled", kernel
    if plan.staged:
        register = columns(plan.lanes)
        kernel = keep(kernel, "T", "t", ("k", contraction.step), "register", register)
    kernel = _places(contraction, plan, kernel)
    yield "where everything lies", kernel
    yield "instructions", _atoms(contraction, plan, kernel, own)


def scheduled(contraction: ContractionShape, plan: VectorPlan) -> Kernel:
    """The kernel after its last step."""
    *_, (_, kernel) = steps(contraction, plan)
    return kernel


def _scales(contraction: ContractionShape, plan: VectorPlan) -> tuple[str, ...]:
    """The names of the arrays of scales that multiply the sums of a block."""
    by_column = contraction.scales is not None and not plan.rounded
    return (*(["SA"] * contraction.scaled), *(["SB"] * by_column))


def _tiles(contraction: ContractionShape, plan: VectorPlan, kernel: Kernel) -> Kernel:
    step, rests = contraction.step, plan.rests
    decoded = "W= SW=" if "SW" in kernel.arrays else "W="
    products = f"{decoded} T+="
    tile = f"T=0 {products} {'Z=' if plan.blocks else 'Y='}"
    every = f"{tile} Y=" if plan.blocks else tile
    kernel = over(kernel, "g", 1, every, grid=True)
    if plan.rows_a_workgroup is not None:
        in_grid = contraction.choice != "sorted"
        kernel = over(kernel, "m", plan.rows_a_workgroup, every, grid=in_grid)
    kernel = over(kernel, "n", plan.columns_a_workgroup, every, grid=True)
    if plan.blocks:
        kernel = over(kernel, "n", contraction.together, every)
        kernel = over(kernel, "m", plan.rows, every, rest=rests)
        kernel = over(kernel, "n", plan.columns, tile)
        return over(kernel, "k", step, products)
    # The padding of the last panel counts. If tiles do not divide the columns, the last tile is one
    # register wide.
    odd = -(-contraction.columns // _PANEL) * _PANEL % plan.columns
    kernel = over(kernel, "n", plan.columns, every, rest=(plan.lanes,) if odd else ())
    if not plan.staged:
        kernel = over(kernel, "m", plan.rows, every, rest=rests)
        return over(kernel, "k", step, products)
    kernel = over(kernel, "m", plan.rows, "T=0", rest=rests)
    kernel = over(kernel, "k", plan.staged, products)
    kernel = over(kernel, "k", step, decoded)
    kernel = over(kernel, "m", plan.rows, "T+=", rest=rests)
    kernel = over(kernel, "k", step, "T+=")
    return over(kernel, "m", plan.rows, "Y=", rest=rests)


def _blocks(
    contraction: ContractionShape, plan: VectorPlan, kernel: Kernel, scales: tuple[str, ...]
) -> Kernel:
    """Sum and scale block by block. Sums with unsigned weights start at the correction "OA"."""
    start = "OA" if plan.weights.excess else ""
    if start:
        grain = {"k": contraction.step}
        kernel = of_type(kernel, "W", plan.weights)
        kernel = kernel.with_arrays(Array(start, I32, ("r", "k"), "global", grain=grain))
    return block_sums(kernel, "S", sums_of(plan.kind), scales, start)


def _codes(contraction: ContractionShape, plan: VectorPlan) -> Element:
    """The codes as they are looked up. 6-bit codes in rows are a stream of bits, which is first
    spread to one code per byte."""
    codes = contraction.weights
    return codes if plan.packed or codes.bits != _PLANES else replace(codes, bits=8)


def _places(contraction: ContractionShape, plan: VectorPlan, kernel: Kernel) -> Kernel:
    lanes, bits = plan.lanes, _codes(contraction, plan).bits
    weights = weights_of(bits, plan.kind, lanes, contraction.step)
    ragged = contraction.rows is None
    rows: dict[str, Guard] = {"m": "clamped"} if ragged else {}
    order = Layout(item=(*weights.item, *weights.register))
    kernel = place(kernel, "A", "global", order, guards=rows)
    for name in {"SA", "OA"} & set(kernel.arrays):
        kernel = place(kernel, name, "global", Layout(), guards=rows)
    panels = {"B": panel_layout(bits).in_memory(), "SB": columns(_PANEL).in_memory()}
    for name in panels.keys() & set(kernel.arrays):
        if plan.packed:
            kernel = place(kernel, name, "global", panels[name])
        else:
            kernel = place(kernel, name, "global", Layout(), guards={"n": "clamped"})
    there: dict[str, Guard] = {"n": "masked"} if contraction.columns % _PANEL else {}
    kernel = place(kernel, "Y", "global", Layout(), guards={**rows, **there})
    for name in {"T", "S", "t"} & set(kernel.arrays):
        waits = name == "T" and plan.staged
        kernel = place(kernel, name, "stack" if waits else "register", columns(lanes))
    if "Z" in kernel.arrays:
        kernel = place(kernel, "Z", "stack", Layout())
    if "SW" in kernel.arrays:
        kernel = place(kernel, "SW", "stack", columns(lanes), slots={"k": plan.staged})
    if plan.staged:
        return place(kernel, "W", "stack", weights, slots={"k": plan.staged})
    return place(kernel, "W", "register", weights)


def _atoms(
    contraction: ContractionShape, plan: VectorPlan, kernel: Kernel, scales: tuple[str, ...]
) -> Kernel:
    lanes, kind, step = plan.lanes, plan.kind, contraction.step
    by = contraction.scales if plan.rounded else None
    codes = _codes(contraction, plan)
    atom = decoder(codes, plan.weights, kind, lanes, step, by)
    kernel = use(kernel, "W=", atom, plan.ahead)
    total = "t" if plan.staged else "T"
    sums = "S" if scales else total
    if scales:
        late = F32 if "SW" in scales else contraction.scales if "SB" in scales else None
        kernel = use(kernel, f"{total}+=", scale(lanes, contraction.scaled, late))
    if "SW" in scales:
        assert contraction.scales is not None
        kernel = use(kernel, "SW=", factors(lanes, contraction.scales))
    weights = weights_of(codes.bits, kind, lanes, step)
    kernel = use(kernel, f"{sums}+=", dot(kind, lanes, weights))
    return chained(kernel, sums, plan.chains)
