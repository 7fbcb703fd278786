"""Schedules of GPU kernels: how a product is cut into tiles and waves, and how operands reach
registers. Also reads and writes schedules, as attributes of contractions and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from iree.compiler import ir

from mxc.dialects.locations import place_of
from mxc.errors import PassError
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixUnit

Transport = Literal["stream", "ring", "decoded"]


@dataclass(frozen=True, kw_only=True)
class GpuSchedule:
    """How the kernel of a product is cut into tiles, and how operands reach registers.

    `tiles`: tiles of a wave along rows and columns; a tile is what one `instruction` computes.
    `waves`: waves of a workgroup along rows, columns and K.

    `transport`: "stream": operands go straight from memory to registers (stream.py). "ring": they
    go through a circular buffer in LDS, as they are in memory; a side that waves do not share may
    go straight to registers (ring/). "decoded": they go through LDS as floats, which lanes decode
    once for the whole workgroup (ring/decoded_kernel.py).

    `stages`, `k_steps`: pipeline stages in LDS, and k-steps of each, for the last two transports.
    A k-step is one scaled matrix instruction along K; where both sides are dense, or decoded once,
    it is a block of 32.

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
        """Rows of the result that a workgroup computes."""
        return self.instruction.rows * self.tiles[0] * self.waves[0]

    @property
    def columns(self) -> int:
        """Columns of rhs that a workgroup multiplies, with those of both halves if there are
        two."""
        return self.instruction.rows * self.tiles[1] * self.waves[1]

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        m, n, k = self.waves
        return self.instruction.unit.lanes * m * n * k


#: Attribute of a contraction: its schedule as a dictionary of fields, or an array of several.
ATTRIBUTE = "mxc.schedule"
#: Key in the fields of each of several schedules but the last: the schedule is for fewer rows than
#: this number.
_BELOW = "below"


@dataclass(frozen=True)
class Schedules:
    """Schedules of one product, by its number of rows: schedule n is for fewer rows than
    `bounds[n]`, and the last schedule, which has no bound, for all others."""

    schedules: Sequence[GpuSchedule]
    bounds: Sequence[int] = ()

    def only(self, rows: int) -> Schedules:
        """Return the one schedule for this number of rows."""
        return Schedules([self.schedules[sum(rows >= bound for bound in self.bounds)]])


def write_schedules(op: ir.Operation, chosen: Schedules) -> None:
    """Write the attribute of a contraction: one schedule as a dictionary, several as an array."""
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
    """Return the schedules of a product as JSON, as in a file of schedules."""
    found = [_values(schedule) for schedule in chosen.schedules]
    for fields, bound in zip(found, chosen.bounds, strict=False):
        fields[_BELOW] = bound
    return json.dumps(found if len(found) > 1 else found[0])


def read_schedules(op: ir.Operation, unit: MatrixUnit = GFX950.matrix) -> Schedules | None:
    """Return the schedules of a contraction, or None if none was chosen. PassError if they are
    invalid."""
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
    return schedules_of(found, place_of(op.location), unit)


def schedules_of(
    given: Sequence[Mapping[str, Any]], place: str, unit: MatrixUnit = GFX950.matrix
) -> Schedules:
    """Build schedules from dictionaries of their fields, as in JSON. All but the last have `below`:
    the number of rows from which on the next schedule is used.

    Raises PassError, which names `place`, if a schedule is invalid or these numbers do not rise.
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
    """Build a schedule from its fields, as in JSON, for the instructions of `unit`.

    Raises PassError, which names `place`, if a field is invalid or the unit has no such
    instruction.
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
