"""The contraction: a product of two tensors, described by one attribute of the operation.

    flow.dispatch @k::@k(%x, %ids, %w, %s) {mxc.contraction = {
        batch = 4, m = 1, n = 5760, k = 2880, experts = 32,
        lhs = {element = bf16}, rhs = {block = 32, element = f4E2M1FN, scale = f8E8M0FNU},
        out = {element = f32}, kind = "dot product"}} : ..

The body of a kernel of mxc is vectors and intrinsics, which do not show what is computed. The
attribute survives IREE's phases up to flow, where the report reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from iree.compiler import ir

from mxc.dialects.dispatches import element_bits
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.targets.target import Kind

ATTRIBUTE = "mxc.contraction"

#: Most bits of a packed element.
_BITS = 8
#: (element, scale, block) -> name.
_NAMES = {(f.element.mlir, f.scale.mlir, f.block): f.name for f in FORMATS.values()}
_NAMES[("i8", "f32", 32)] = "int8"


@dataclass(frozen=True)
class OperandFormat:
    """`element` and `scale`: MLIR types by name; `block`: elements of a row per scale. Plain
    numbers have no scale. `rounded`: the type to which values are rounded before they are
    multiplied, "" for no rounding. `rows`: consecutive rows that share their scales in memory."""

    element: str
    scale: str = ""
    block: int = 0
    rounded: str = ""
    rows: int = 1

    @staticmethod
    def of(format: BlockFormat) -> OperandFormat:
        """The operand format of a block format."""
        return OperandFormat(format.element.mlir, format.scale.mlir, format.block)

    @property
    def is_packed(self) -> bool:
        """Whether elements are scaled, or have 8 bits or fewer."""
        return bool(self.scale) or 1 < self.bits <= _BITS

    @property
    def name(self) -> str:
        """The name for reports: "mxfp4", "nvfp4", or the plain MLIR type, "f32".

        A pair of element and scale that is no known format is named by its types.
        """
        if not self.scale:
            return self.element
        block = str(self.block) if self.rows == 1 else f"{self.rows} x {self.block}"
        unknown = f"{self.element} with {self.scale} per {block}"
        return _NAMES.get((self.element, self.scale, self.block), unknown)

    @property
    def bits(self) -> int:
        """Width of an element."""
        return element_bits(ir.Type.parse(self.element))

    def matrix_bytes(self, rows: int, k: int) -> int:
        """Bytes of rows of k elements with their scales."""
        scales = element_bits(ir.Type.parse(self.scale)) * (k // self.block) if self.scale else 0
        return (rows * self.bits * k + -(-rows // self.rows) * scales) // 8


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """The products of lhs [m, k] and rhs [n, k] of `batch` groups.

    `experts`: the number of rhs among which each group has one; 0 if all groups share one rhs.
    `chosen`: ids select the expert of each group; otherwise group i uses expert i. Sizes that are
    known only at the call are None in `batch` and `m`, and negative in `n` and `k`. `any_sizes`:
    the workload of the call may have other sizes than groups and rows.

    The other fields describe the kernel of mxc that computes the contraction, and are empty or 0
    without one. `out`: the format of the result. `kind`: the kind of the instruction that
    multiplies. `choice`: why a better kind that the machine has is not used. `schedule`: the
    schedule that the user gave. `plan`: the schedule of the kernel, whoever chose it, in the form
    of a file of schedules. `unfused`: the name of the elementwise operation that follows, and why
    another kernel computes it. `clocks`: clocks on a GPU, as estimated by the time model that chose
    the schedule. `workgroups`: the number of workgroups.
    """

    batch: int | None
    m: int | None
    n: int
    k: int
    lhs: OperandFormat
    rhs: OperandFormat
    out: OperandFormat
    experts: int = 0
    chosen: bool = False
    any_sizes: bool = False
    kind: Kind | None = None
    choice: str = ""
    schedule: str = ""
    plan: str = ""
    unfused: str = ""
    clocks: int = 0
    workgroups: int = 0

    @property
    def weights(self) -> int:
        """The largest number of distinct rhs that a call reads."""
        if not self.experts:
            return 1
        return self.experts if self.batch is None else min(self.batch, self.experts)

    @property
    def is_own(self) -> bool:
        """Whether group i uses expert i."""
        return self.experts > 0 and not self.chosen

    @property
    def symbol(self) -> str:
        """A part of a symbol: "4x1x96x64_of_8"; D stands for a size that is known at the call."""
        sizes = (self.batch, self.m, self.n, self.k)
        name = "x".join("D" if size is None else str(size) for size in sizes)
        if not self.experts:
            return name
        return f"{name}_of_{self.experts}" if self.chosen else f"{name}_each"

    def write(self, op: ir.Operation) -> None:
        """Add this record to the attribute of an operation, keeping its other entries."""
        say(op, _written(self))


def read_contraction(op: ir.Operation) -> Contraction | None:
    """The contraction recorded on an operation; None without a record, or with only a reason why no
    kernel computes it."""
    known = {field.name for field in fields(Contraction)}
    found = {name: each for name, each in _attributes_of(op).items() if name in known}
    found = {name: _value(name, each) for name, each in found.items()}
    sides: dict[str, Any] = {
        name: OperandFormat(**found[name]) for name in ("lhs", "rhs", "out") if name in found
    }
    return Contraction(**(found | sides)) if sides else None


#: The number of a size that is known only at the call, and the fields in which it is None.
_DYNAMIC, _NONE = -1, ("batch", "m")
#: Fields of formats that hold type names; other strings are text for people.
_TYPES = ("element", "scale", "rounded")


def says(op: ir.Operation, name: str) -> bool:
    """Whether the attribute of an operation has an entry of this name."""
    return name in _attributes_of(op)


def say(op: ir.Operation, entries: Mapping[str, ir.Attribute]) -> None:
    """Add entries to the attribute of an operation."""
    op.attributes[ATTRIBUTE] = ir.DictAttr.get({**_attributes_of(op), **entries})


def _attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    if ATTRIBUTE not in op.attributes:
        return {}
    return {each.name: each.attr for each in ir.DictAttr(op.attributes[ATTRIBUTE])}


def _written(record: Contraction | OperandFormat) -> dict[str, ir.Attribute]:
    """The fields of a record that differ from their defaults."""
    found = {field.name: (field.default, getattr(record, field.name)) for field in fields(record)}
    said = {name: value for name, (default, value) in found.items() if value != default}
    return {name: _attribute(name, value) for name, value in said.items()}


def _attribute(name: str, value: Any) -> ir.Attribute:
    if isinstance(value, OperandFormat):
        return ir.DictAttr.get(_written(value))
    if isinstance(value, bool):
        return ir.UnitAttr.get()
    if isinstance(value, str):
        is_type = name in _TYPES
        return ir.TypeAttr.get(ir.Type.parse(value)) if is_type else ir.StringAttr.get(value)
    size = _DYNAMIC if value is None else value
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)


def _value(name: str, attribute: ir.Attribute) -> Any:
    if isinstance(attribute, ir.DictAttr):
        return {each.name: _value(each.name, each.attr) for each in attribute}
    if isinstance(attribute, ir.UnitAttr):
        return True
    value = attribute.value
    if isinstance(value, ir.Type):
        return str(value)
    return None if value == _DYNAMIC and name in _NONE else value
