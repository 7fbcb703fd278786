"""How a product is cut up: tiles of a wave, waves of a workgroup, and how operands get there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from iree.compiler import ir

from mxc.dialects.errors import PassError
from mxc.dialects.matrix_units import GFX950, MatrixUnit
from mxc.passes.kernels.gpu.fragments import Instruction

Transport = Literal["stream", "ring"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`tiles`: of a wave along rows and columns, of `instruction`; `waves`: of a workgroup along
    rows, columns and K.

    `transport`: operands go straight from memory to registers (stream.py), or through a ring of
    `stages` stages in shared memory, each of `turns` instructions along K (ring.py).
    """

    instruction: Instruction
    tiles: tuple[int, int]
    waves: tuple[int, int, int]
    transport: Transport = "stream"
    stages: int = 0
    turns: int = 0

    @property
    def rows(self) -> int:
        """Rows of the result that a workgroup has."""
        return self.instruction.rows * self.tiles[0] * self.waves[0]

    @property
    def columns(self) -> int:
        """Columns of the result that a workgroup has."""
        return self.instruction.rows * self.tiles[1] * self.waves[1]

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        m, n, k = self.waves
        return self.instruction.unit.lanes * m * n * k


#: Of a contraction: the schedule that was chosen for it, a dictionary of its fields.
ATTRIBUTE = "mxc.schedule"


def write_schedule(op: ir.Operation, schedule: Schedule) -> None:
    """Put a schedule on a contraction."""
    i64 = ir.IntegerType.get_signless(64)
    found: dict[str, ir.Attribute] = {
        "instruction": ir.IntegerAttr.get(i64, schedule.instruction.rows),
        "tiles": ir.DenseI64ArrayAttr.get(list(schedule.tiles)),
        "waves": ir.DenseI64ArrayAttr.get(list(schedule.waves)),
        "transport": ir.StringAttr.get(schedule.transport),
    }
    if schedule.transport == "ring":
        found["stages"] = ir.IntegerAttr.get(i64, schedule.stages)
        found["turns"] = ir.IntegerAttr.get(i64, schedule.turns)
    op.attributes[ATTRIBUTE] = ir.DictAttr.get(found)


def read_schedule(op: ir.Operation, unit: MatrixUnit = GFX950) -> Schedule | None:
    """The schedule of a contraction, None where none was chosen. PassError where it is none."""
    if ATTRIBUTE not in op.attributes:
        return None
    given = ir.DictAttr(op.attributes[ATTRIBUTE])
    fields: dict[str, Any] = {}
    for each in given:
        value = each.attr
        whole = isinstance(value, ir.DenseI64ArrayAttr)
        fields[each.name] = list(value) if whole else value.value
    return schedule_of(fields, str(op.location), unit)


def schedule_of(fields: Mapping[str, Any], place: str, unit: MatrixUnit = GFX950) -> Schedule:
    """A schedule from its fields, as JSON has them, for the instructions of `unit`.

    PassError, with the place, where it is none, or the unit has no such instruction.
    """
    known = ("instruction", "tiles", "waves", "transport", "stages", "turns")
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise PassError(
            f"{place}: a schedule has no {unknown[0]!r}; its fields: {', '.join(known)}"
        )
    rows, transport = fields.get("instruction"), fields.get("transport", "stream")
    tiles, waves = (tuple(fields.get(name, ())) for name in ("tiles", "waves"))
    counts = [*tiles, *waves, fields.get("stages", 0), fields.get("turns", 0)]
    shapes = [form.rows for form in unit.forms]
    if (
        rows not in shapes
        or transport not in get_args(Transport)
        or (len(tiles), len(waves)) != (2, 3)
        or not all(isinstance(n, int) for n in counts)
        or min(*tiles, *waves) < 1
        or math.prod(waves) > 16
    ):
        raise PassError(
            f"{place}: a schedule wants instruction {' or '.join(map(str, shapes))}, tiles [rows, "
            "columns], waves [rows, columns, K] of at most 16 in all, transport stream or ring, "
            f"and of a ring stages and turns; found {dict(fields)}"
        )
    return Schedule(
        instruction=Instruction(rows, unit),
        tiles=(tiles[0], tiles[1]),
        waves=(waves[0], waves[1], waves[2]),
        transport=transport,
        stages=fields.get("stages", 0),
        turns=fields.get("turns", 0),
    )
