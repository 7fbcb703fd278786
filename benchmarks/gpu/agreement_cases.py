"""Cases for mxc's gfx950 kernels: format pairs, blocks, instruction shapes, epilogues, ragged ends.

Shapes are small, because each instruction is simulated. The last tile, k-step, span and quad of
each is partial. Schedules are given explicitly, so that every variant of the kernels runs, whatever
the cost model would choose at such sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from mxc.formats.formats import FORMATS, BlockFormat, with_block
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.schedule import GpuSchedule

ELEMENTS = ("mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2")
FLOATS = ("bf16", "f16", "f32")
#: What follows a product. A case has one of these, or "": the product alone.
EPILOGUES = ("bias_silu", "gate", "residual", "rows", "quantize")

_SMALL, _LARGE = TileInstruction(16), TileInstruction(32)
#: By name: waves that share K; waves side by side; the instruction of 32 rows; operands in LDS.
SCHEDULES = {
    "16 along K": GpuSchedule(instruction=_SMALL, tiles=(1, 2), waves=(1, 1, 4)),
    "16": GpuSchedule(instruction=_SMALL, tiles=(2, 2), waves=(2, 2, 1)),
    "32": GpuSchedule(instruction=_LARGE, tiles=(1, 2), waves=(1, 1, 2)),
    "ring": GpuSchedule(
        instruction=_LARGE, tiles=(1, 2), waves=(4, 1, 1), transport="ring", stages=3, k_steps=2
    ),
}
#: Schedules of products whose elements become floats in registers.
_STREAMS = ("16 along K", "16", "32")
#: Rows, columns and K for each schedule: the last tile, quad, k-step, chunk and mask are partial.
_SHAPES = {
    "16 along K": (5, 33, 544),
    "16": (40, 70, 160),
    "32": (33, 100, 352),
    "ring": (70, 131, 1184),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program: the product of [m, k] by [n, k].

    lhs, rhs: names of formats; lhs may also be a float type. schedule: a name in `SCHEDULES`.
    block: elements per scale, 0 for those of the format. between: the type to which the program
    dequantizes scaled sides before the product, "" if it does not. groups: number of products, 0
    for one without a batch dimension. experts: number of weights, from which each group chooses one
    by its id; 0 if each group has a weight of its own.
    """

    lhs: str
    rhs: str
    schedule: str
    m: int
    n: int
    k: int
    block: int = 0
    between: str = ""
    epilogue: str = ""
    groups: int = 0
    experts: int = 0

    @property
    def name(self) -> str:
        """The unique name of the case."""
        words = [f"{self.lhs} x {self.rhs}", self.schedule, f"{self.m}x{self.n}x{self.k}"]
        words += [f"block {self.block}"] * bool(self.block)
        words += [f"to {self.between}"] * bool(self.between)
        words += [self.epilogue] * bool(self.epilogue)
        words += [f"{self.groups} of {self.experts or self.groups}"] * bool(self.groups)
        return ", ".join(words)

    @property
    def function(self) -> str:
        """The symbol of the function: the name with `_` for all but letters and digits."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)

    def format(self, name: str) -> BlockFormat | None:
        """Return the format called `name`, with the block of the case; None for floats."""
        found = FORMATS.get(name)
        return with_block(found, self.block) if found is not None and self.block else found

    @property
    def register(self) -> str:
        """The float type that elements become in registers; "" if they are multiplied as they
        are."""
        if self.between == "f16" or (self.rhs == "nvfp4" and self.lhs in ("nvfp4", "f16")):
            return "f16"
        sides = [self.format(name) for name in (self.lhs, self.rhs)]
        scaled = all(f is not None and f.block >= 32 and f.element.exponent for f in sides)
        return "" if scaled and not self.between else "bf16"


def cases() -> list[Case]:
    """Return all cases; their names are unique."""
    found = [*_pairs(), *_weight_only(), *_blocks(), *_rounded(), *_groups()]
    assert len({case.name for case in found}) == len(found)
    return found


def at(lhs: str, rhs: str, schedule: str, *, block: int = 0, epilogue: str = "") -> Case:
    """Return a product of the shape of its schedule (`_SHAPES`), changed where the block or the
    epilogue needs it."""
    m, n, k = _SHAPES[schedule]
    if block > 32:
        # A number of blocks that ends within a k-step; for the ring more than 512 elements.
        least = 512 if schedule == "ring" else block
        k = -(-least // block) * block + block
    if epilogue in ("gate", "quantize"):
        n = 192
    return Case(lhs=lhs, rhs=rhs, schedule=schedule, m=m, n=n, k=k, block=block, epilogue=epilogue)


def _pairs() -> Iterator[Case]:
    for lhs, rhs in product(ELEMENTS, repeat=2):
        for schedule in SCHEDULES:
            yield at(lhs, rhs, schedule)
        for number, epilogue in enumerate(EPILOGUES):
            # Over all pairs, each epilogue meets each schedule.
            place = number + ELEMENTS.index(lhs) + ELEMENTS.index(rhs)
            schedule = list(SCHEDULES)[place % len(SCHEDULES)]
            if (schedule, epilogue) == ("ring", "quantize"):
                schedule = "32"
            yield at(lhs, rhs, schedule, epilogue=epilogue)


def _weight_only() -> Iterator[Case]:
    for lhs, rhs in product(FLOATS, (*ELEMENTS, "mxint8", "nvfp4")):
        for schedule in _STREAMS:
            yield at(lhs, rhs, schedule)
    for lhs, (number, epilogue) in product(FLOATS, enumerate(EPILOGUES)):
        yield at(lhs, "mxfp4", _STREAMS[number % len(_STREAMS)], epilogue=epilogue)


def _blocks() -> Iterator[Case]:
    for lhs, rhs in product((*ELEMENTS, "mxint8"), repeat=2):
        yield at(lhs, rhs, "16 along K", block=16)
    for schedule in _STREAMS:
        yield at("nvfp4", "nvfp4", schedule)
        yield at("mxfp8e4m3", "mxint8", schedule)
    for name in (*ELEMENTS, "mxint8"):
        yield at(name, "nvfp4", "16 along K")
        yield at("nvfp4", name, "32")
    for block, schedule in product((64, 128, 256, 512), SCHEDULES):
        yield at("mxfp4", "mxfp8e5m2", schedule, block=block)
        if schedule != "ring":
            yield at("bf16", "mxfp6e3m2", schedule, block=block)


def _rounded() -> Iterator[Case]:
    for lhs, rhs in (("mxfp8e4m3", "mxfp8e5m2"), ("mxfp4", "mxfp8e4m3"), ("bf16", "mxfp8e4m3"),
                     ("f32", "mxfp8e5m2")):  # fmt: skip
        for schedule in _STREAMS:
            yield replace(at(lhs, rhs, schedule), between="bf16")
    for lhs, rhs in (("mxfp4", "mxfp4"), ("mxfp6e2m3", "mxfp6e3m2"), ("f16", "mxfp4"),
                     ("f16", "mxfp8e5m2")):  # fmt: skip
        for schedule in _STREAMS:
            yield replace(at(lhs, rhs, schedule), between="f16")


def _groups() -> Iterator[Case]:
    for lhs, rhs in (("mxfp4", "mxfp4"), ("mxfp8e4m3", "mxfp6e2m3"), ("bf16", "mxfp4")):
        for schedule in SCHEDULES:
            if (lhs, schedule) != ("bf16", "ring"):
                yield replace(at(lhs, rhs, schedule), groups=4, experts=3)
                yield replace(at(lhs, rhs, schedule), groups=3)
