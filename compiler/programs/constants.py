"""Constants of a program as parameters: their bytes go to files, in the order that kernels read.

A frontend may store a weight as [K, N]. What reads a parameter in another order than its own
dimensions gets a parameter of its own, in the order of its loops, so that no call transposes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.compiler.checkpoints.files.tensors import dtype_name
from mxc.compiler.programs.imported import NIBBLE, ConstantParameter
from mxc.compiler.programs.signature import NO_F64
from mxc.compiler.programs.views import ArrayView
from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_made_by, is_packed, iterators
from mxc.dialects.dispatches import walk
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.locations import names
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.parameters import Parameters, initial_value
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import match_scaled_contraction
from mxc.dialects.slices import sliced_trace
from mxc.dialects.tensor_constants import codes_of_attribute
from mxc.errors import CompileError
from mxc.passes.base import add_note
from mxc.passes.rewriting.rebuild import (
    OperandRead,
    linalg_operations,
    operations_named,
    rebuild,
    sums_floats,
    sweep,
)

#: MLIR element type -> dtype of its bytes in memory, one element each.
_DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
}
#: Floats of so many bits are bytes where they are stored.
_BYTE = 8
#: A list of at most so many numbers is a table or a bias, which stays in the program.
LIST = 1024
#: The end of a parameter's name that is not of its module: lin.weight, lin.weight.qdata.
_PART = re.compile(r"\.weight(\.\w+)?$")

#: What constants are called that the program has no name for.
CONSTANT = "constant"


class ConstantParameters:
    """The constants of one module that become parameters; their files are in `folder`."""

    def __init__(self, module: ir.Module, folder: Path, functions: Collection[str] = ()) -> None:
        """Start with `module`, which has no parameter yet; `functions`: names that no parameter
        gets."""
        self._functions = functions
        self.found: dict[str, ConstantParameter] = {}
        self._module = module
        self._folder = folder
        self._parameters = Parameters(module)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._unnamed: set[str] = set()
        self._bases: dict[str, str] = {}
        self._arranged: dict[tuple[str, str, tuple[tuple[int, int], ...]], str] = {}

    def take(self) -> None:
        """Make a parameter of each constant tensor that is no table and no repeated element."""
        for op in [op for op in walk(self._module.operation) if op.name == "arith.constant"]:
            value, attribute = op.results[0], op.attributes["value"]
            if not _is_weight(value, attribute):
                continue
            name = self.add(CONSTANT, array_of(attribute), str(element_of(value)))
            with ir.InsertionPoint(op), op.location:
                value.replace_all_uses_with(self.load(name, self._parameters))
            op.erase()

    def note(self, text: str) -> None:
        """Add a sentence to the notes of the module, which the report prints."""
        add_note(self._module.operation, text)

    @staticmethod
    def dtype(element: str) -> np.dtype[Any]:
        """The dtype of arrays of an MLIR element type."""
        return _DTYPES[element]

    def add(self, name: str, array: NDArray[Any], element: str) -> str:
        """Make a parameter of an array of elements; its name, which is `name` unless it is taken.

        The array has the dtype of `element`, an MLIR type of _DTYPES, one element each. Raises
        CompileError for float64.
        """
        if element == "f64":
            raise CompileError(f"{name} {list(array.shape)} is float64, and {NO_F64}", "import")
        if name == CONSTANT:
            name = self._unique(name)
            self._unnamed.add(name)
        elif name in self.found or name in self._functions:
            name = self._unique(name)
        self._arrays[name] = array
        self._write(name, array, element)
        return name

    def load(self, name: str, parameters: Parameters) -> ir.Value:
        """The whole of a parameter that was added, at the insertion point of its module."""
        array, element = self._arrays[name], ir.Type.parse(self.found[name].element)
        return self._load(name, ir.RankedTensorType.get(array.shape, element), parameters)

    def arrange(self) -> None:
        """Give each contraction its parameters by rows, with the loops that it sums last, and each
        gather its table in the order of its dimensions."""
        for op in operations_named(self._module.operation, GATHER):
            axes = len(shape_of(op.operands[0]))
            whole = ir.AffineMap.get_identity(axes)
            table = self._by_rows(op, op.operands[0], whole, range(axes), shape_of(op.operands[0]))
            # A table that is repeated along a dimension stays as it is.
            if table is not None and table.value.type == op.operands[0].type:
                op.operands[0] = table.value
        for op in linalg_operations(self._module.operation):
            if not sums_floats(op):
                continue
            maps, ranges = indexing_maps(op), loop_ranges(op)
            order = _loops(op)
            inputs = []
            changed = False
            for value, affine in zip(list(op.operands)[:-1], maps, strict=False):
                read = self._by_rows(op, value, affine, order, ranges)
                changed = changed or read is not None
                inputs.append(OperandRead(value, affine) if read is None else read)
            self._say(op, inputs)
            if changed:
                rebuild(op, inputs)
        sweep(self._module.operation)
        self._forget_unread()

    def _say(self, op: ir.Operation, inputs: Sequence[OperandRead]) -> None:
        """Name a contraction by its weight where nothing names it, for the report."""
        read = [_parameter(_table(each.value)) for each in inputs]
        weights = [name for name in read if name in self.found and name not in self._unnamed]
        if weights and not names(op.location):
            largest = max(weights, key=lambda name: prod(self.found[name].shape))
            own = _PART.sub("", self._bases.get(largest, largest))
            op.location = ir.Location.name(own, op.location)

    def _by_rows(
        self,
        op: ir.Operation,
        value: ir.Value,
        affine: ir.AffineMap,
        order: Sequence[int],
        ranges: Sequence[int | None],
    ) -> OperandRead | None:
        """A parameter whose dimensions are the loops that read `value`; None to leave it."""
        if not isinstance(value.type, ir.RankedTensorType):
            return None
        source, at, count = sliced_trace(value, list(affine.results), ranges)
        name = _parameter(source)
        if name is None or name not in self._arrays:
            return None
        array = self._arrays[name]
        read = {loop for loop in dims(affine) if loop is not None}
        view = ArrayView(array, at, affine.n_dims)
        # A loop of one step has no stride, but the other operand has it, and they are merged later.
        moving = read if view.strides is None else {i for i, by in enumerate(view.strides) if by}
        loops = [
            (i, size)
            for i in order
            if (size := ranges[i]) is not None and (i in moving or (size == 1 and i in read))
        ]
        others = [] if op.name == GATHER else [m for m in indexing_maps(op) if m != affine]
        elsewhere = {loop for each in others for loop in dims(each)}
        if not read - {loop for loop, _ in loops} <= elsewhere:
            # Windows alone have such a loop: without its own operand it would have no length.
            return None
        shape = [size for _, size in loops]
        if prod(shape) != (array.size if count is None else count):
            return None
        element = element_of(value)
        if source == value and shape == shape_of(value) and view.is_row_major(loops):
            return None
        if _bits(element) == NIBBLE and shape[-1] % 2:
            return None
        key = (name, str(at), tuple(loops))
        if key not in self._arranged:
            self._arranged[key] = made = self._unique(name)
            self._bases[made] = name
            if name in self._unnamed:
                self._unnamed.add(made)
            self._write(made, view.read(loops), str(element))
        with ir.InsertionPoint(op), op.location:
            kind = ir.RankedTensorType.get(shape, element)
            found = self._load(self._arranged[key], kind, self._parameters)
        reads = [ir.AffineDimExpr.get(i) for i, _ in loops]
        return OperandRead(found, ir.AffineMap.get(affine.n_dims, 0, reads))

    def _write(self, name: str, array: NDArray[Any], element: str) -> None:
        file = self._folder / f"{len(list(self._folder.iterdir()))}.bin"
        stored = _stored(array, element)
        stored.tofile(file)
        self.found[name] = ConstantParameter(
            file=file,
            dtype=dtype_name(stored.dtype),
            shape=stored.shape,
            element=element,
        )

    def _load(self, name: str, kind: ir.RankedTensorType, parameters: Parameters) -> ir.Value:
        """The parameter as a tensor of type `kind`, at the insertion point."""
        element = kind.element_type
        shape = self.found[name].shape
        if not is_packed(element):
            return parameters.load(name, shape, element)
        stored = parameters.load(name, shape, ir.IntegerType.get_signless(_BYTE))
        return unpack(stored, element)

    def _unique(self, name: str) -> str:
        number = 0
        while (made := f"{name}.{number}") in self.found:
            number += 1
        return made

    def _forget_unread(self) -> None:
        """Drop what no operation loads any more."""
        loads = [op for op in walk(self._module.operation) if op.name == "util.global.load"]
        read = {ir.FlatSymbolRefAttr(op.attributes["global"]).value for op in loads}
        for view in list(self._module.body.operations):
            op = view.operation
            if op.name == "util.global":
                name = symbol_of(op)
                if name in self.found and name not in read:
                    self.found.pop(name).file.unlink()
                    op.erase()
        made = [name for name in self.found if name in self._bases]
        for name in made:
            base = self._bases[name]
            if base not in self.found and [self._bases[each] for each in made].count(base) == 1:
                self._rename(name, base)

    def _rename(self, name: str, to: str) -> None:
        """Give a parameter another name, which is free."""
        self.found[to] = self.found.pop(name)
        for op in walk(self._module.operation):
            if op.name == "util.global.load" and _symbol(op, "global") == name:
                op.attributes["global"] = ir.FlatSymbolRefAttr.get(to)
            elif op.name == "util.global" and _symbol(op, "sym_name") == name:
                kind = ir.TypeAttr(op.attributes["type"]).value
                op.attributes["sym_name"] = ir.StringAttr.get(to)
                op.attributes["initial_value"] = initial_value(to, kind)


def array_of(attribute: ir.Attribute) -> NDArray[Any]:
    """The elements of a dense attribute in its shape, of the dtype of ml_dtypes or numpy."""
    dense = ir.DenseElementsAttr(attribute)
    kind = ir.RankedTensorType(dense.type)
    return codes_of_attribute(dense).view(_DTYPES[str(kind.element_type)]).reshape(kind.shape)


def _symbol(op: ir.Operation, attribute: str) -> str:
    """The name of a global, or of the one that is loaded."""
    kind = ir.FlatSymbolRefAttr if attribute == "global" else ir.StringAttr
    return str(kind(op.attributes[attribute]).value)


def _is_weight(value: ir.Value, attribute: ir.Attribute) -> bool:
    if not isinstance(value.type, ir.RankedTensorType) or str(element_of(value)) not in _DTYPES:
        return False
    if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
        return False
    if any(use.owner.name == "tensor.extract" for use in value.uses):
        return bool(value.type.rank > 1 and prod(value.type.shape) > LIST)
    odd = _bits(element_of(value)) == NIBBLE and value.type.shape[-1] % 2
    return not odd and bool(value.type.rank > 1 or prod(value.type.shape) > LIST)


def _bits(element: ir.Type) -> int:
    return int(getattr(element, "width", 0))


def _stored(array: NDArray[Any], element: str) -> NDArray[Any]:
    """The array as it is stored: 4-bit floats two in a byte, the even one in the low nibble."""
    array = np.ascontiguousarray(array)
    if element == "f4E2M1FN":
        codes = array.view(np.uint8)
        return np.asarray(codes[..., 0::2] | codes[..., 1::2] << NIBBLE)
    return array.view(np.uint8) if element.startswith("f8") else array


def _table(value: ir.Value) -> ir.Value:
    """What a tensor is gathered from; other tensors as they are."""
    gathers = is_made_by(value, GATHER)
    return value.owner.operands[0] if gathers else value


def _parameter(value: ir.Value) -> str | None:
    """The parameter that a tensor is loaded from, or its bytes are."""
    if isinstance(value, ir.BlockArgument):
        return None
    op = value.owner.operation
    if op.name == "flow.tensor.bitcast":
        value = op.operands[0]
        if isinstance(value, ir.BlockArgument):
            return None
        op = value.owner.operation
    if op.name != "util.global.load":
        return None
    return str(ir.FlatSymbolRefAttr(op.attributes["global"]).value)


def _loops(op: ir.Operation) -> list[int]:
    """The loops of a contraction in the order of its rows: those of the result, then its sum."""
    found = match_scaled_contraction(op, rounded=True, mixed=True)
    if not isinstance(found, Reason):
        return list(found.loops.order)
    written = [loop for loop in dims(indexing_maps(op)[-1]) if loop is not None]
    return [*written, *(i for i in range(len(iterators(op))) if i not in written)]
