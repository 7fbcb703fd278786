"""How a product is cut up: tiles of a wave, waves of a workgroup, and how operands get there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from iree.compiler import ir

from mxc.errors import PassError
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixUnit

Transport = Literal["stream", "ring", "decoded"]


@dataclass(frozen=True, kw_only=True)
class GpuSchedule:
    """`tiles`: of a wave along rows and columns, of `instruction`; `waves`: of a workgroup along
    rows, columns and K.

    `transport`: operands go straight from memory to registers (stream.py); as they are through a
    ring of `stages` stages in shared memory, each of `k_steps` instructions along K (ring/); or
    through such a ring as floats, which lanes decode once for a workgroup
    (ring/decoded_kernel.py).

    `splits`: workgroups of a tile of the result, each for a part of K (ring/split.py).
    """

    instruction: TileInstruction
    tiles: tuple[int, int]
    waves: tuple[int, int, int]
    transport: Transport = "stream"
    stages: int = 0
    k_steps: int = 0
    splits: int = 1

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


#: Attribute of a contraction: the schedule that was chosen for it, a dictionary of its fields.
ATTRIBUTE = "mxc.schedule"
#: Key of one of several schedules: it is for fewer rows than this.
_BELOW = "below"


@dataclass(frozen=True)
class Schedules:
    """Schedules of one product, by its rows: one more schedule than there are `bounds`; number n is
    for rows less than bound n."""

    schedules: Sequence[GpuSchedule]
    bounds: Sequence[int] = ()

    def only(self, rows: int) -> Schedules:
        """The one for so many rows."""
        return Schedules([self.schedules[sum(rows >= bound for bound in self.bounds)]])


def write_schedules(op: ir.Operation, chosen: Schedules) -> None:
    """Put schedules on a contraction: one as a dictionary, several as an array of them."""
    found = [_fields(schedule) for schedule in chosen.schedules]
    for fields, bound in zip(found, chosen.bounds, strict=False):
        fields[_BELOW] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), bound)
    dictionaries = [ir.DictAttr.get(fields) for fields in found]
    (only, *more) = dictionaries
    op.attributes[ATTRIBUTE] = ir.ArrayAttr.get(dictionaries) if more else only


def _fields(schedule: GpuSchedule) -> dict[str, ir.Attribute]:
    return {name: _attribute(value) for name, value in _values(schedule).items()}


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.DenseI64ArrayAttr.get(value)


def _values(schedule: GpuSchedule) -> dict[str, Any]:
    found: dict[str, Any] = {
        "instruction": schedule.instruction.rows,
        "tiles": list(schedule.tiles),
        "waves": list(schedule.waves),
        "transport": schedule.transport,
    }
    if schedule.transport != "stream":
        found |= {"stages": schedule.stages, "k_steps": schedule.k_steps}
    return found if schedule.splits == 1 else found | {"splits": schedule.splits}


def text_of(chosen: Schedules) -> str:
    """The schedules of a product as JSON: what a file of schedules has for it."""
    found = [_values(schedule) for schedule in chosen.schedules]
    for fields, bound in zip(found, chosen.bounds, strict=False):
        fields[_BELOW] = bound
    return json.dumps(found if len(found) > 1 else found[0])


def read_schedules(op: ir.Operation, unit: MatrixUnit = GFX950.matrix) -> Schedules | None:
    """The schedules of a contraction, None where none was chosen. PassError where they are none."""
    if ATTRIBUTE not in op.attributes:
        return None
    given = op.attributes[ATTRIBUTE]
    dictionaries = list(given) if isinstance(given, ir.ArrayAttr) else [given]
    found = []
    for dictionary in dictionaries:
        fields: dict[str, Any] = {}
        for each in ir.DictAttr(dictionary):
            value = each.attr
            whole = isinstance(value, ir.DenseI64ArrayAttr)
            fields[each.name] = list(value) if whole else value.value
        found.append(fields)
    return schedules_of(found, str(op.location), unit)


def schedules_of(
    given: Sequence[Mapping[str, Any]], place: str, unit: MatrixUnit = GFX950.matrix
) -> Schedules:
    """Schedules from their fields, as JSON has them; all but the last say the rows they are for.

    PassError, with the place, where one is none, or the rows do not rise.
    """
    bounds = [fields.get(_BELOW) for fields in given[:-1]]
    known = [bound for bound in bounds if isinstance(bound, int)]
    if not given or len(known) < len(bounds) or known != sorted(set(known)) or min([1, *known]) < 1:
        raise PassError(
            f"{place}: of several schedules all but the last want {_BELOW!r}, the number of rows "
            f"from which on the next one goes, rising; found {bounds}"
        )
    last = len(given) - 1
    plain = [
        {name: value for name, value in fields.items() if name != _BELOW or number == last}
        for number, fields in enumerate(given)
    ]
    return Schedules([schedule_of(fields, place, unit) for fields in plain], known)


def schedule_of(
    fields: Mapping[str, Any], place: str, unit: MatrixUnit = GFX950.matrix
) -> GpuSchedule:
    """A schedule from its fields, as JSON has them, for the instructions of `unit`.

    PassError, with the place, where it is none, or the unit has no such instruction.
    """
    known = ("instruction", "tiles", "waves", "transport", "stages", "k_steps", "splits")
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise PassError(
            f"{place}: a schedule has no {unknown[0]!r}; its fields: {', '.join(known)}"
        )
    rows, transport = fields.get("instruction"), fields.get("transport", "stream")
    tiles, waves = (tuple(fields.get(name, ())) for name in ("tiles", "waves"))
    splits = fields.get("splits", 1)
    counts = [*tiles, *waves, fields.get("stages", 0), fields.get("k_steps", 0), splits]
    shapes = [form.m for form in unit.forms]
    if (
        rows not in shapes
        or transport not in get_args(Transport)
        or (len(tiles), len(waves)) != (2, 3)
        or not all(isinstance(n, int) for n in counts)
        or min(*tiles, *waves, splits) < 1
        or (splits > 1 and transport == "stream")
        or math.prod(waves) > 16
    ):
        raise PassError(
            f"{place}: a schedule wants instruction {' or '.join(map(str, shapes))}, tiles [rows, "
            "columns], waves [rows, columns, K] of at most 16 in all, transport "
            f"{', '.join(get_args(Transport)[:-1])} or {get_args(Transport)[-1]}, and of the last "
            f"two stages, k-steps and splits of K; found {dict(fields)}"
        )
    return GpuSchedule(
        instruction=TileInstruction(rows, unit),
        tiles=(tiles[0], tiles[1]),
        waves=(waves[0], waves[1], waves[2]),
        transport=transport,
        stages=fields.get("stages", 0),
        k_steps=fields.get("k_steps", 0),
        splits=splits,
    )
