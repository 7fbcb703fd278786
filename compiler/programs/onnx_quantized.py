"""Quantization in graphs of ONNX, as exporters write it, in four operations of one domain.

    DequantizeLinear    elements, scale, zero point -> f32
    QuantizeLinear      floats, scale, zero point -> elements
    QuantizeBlocks      floats, scale of the tensor -> elements, scales of blocks
    RoundBlocks         floats -> floats, rounded to a block format and back

They come from the operations of ONNX itself, of onnxruntime (com.microsoft), of TensorRT as NVIDIA
modelopt exports it (trt), and of AMD Quark (com.amd.quark). A weight that is quantized in the graph
is quantized here. A MatMul or Gemm that reads a dequantized tensor does so before that is rounded
to f16 or bf16, and sums in f32, as matrix instructions do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.programs.onnx_codes import (
    BFLOAT16,
    E4M3,
    E5M2,
    E8M0,
    FLOAT4,
    HALF,
    INT8,
    LIMITS,
    UINT8,
    quantized,
)
from mxc.compiler.programs.onnx_types import (
    DEQUANTIZE,
    DOMAIN,
    FLOAT,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    ROUND_BLOCKS,
    types_of,
)
from mxc.errors import CompileError
from mxc.formats.formats import FORMATS
from mxc.formats.packing import unpack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize

#: What exporters write -> what it is.
_KINDS = {
    DEQUANTIZE: DEQUANTIZE,
    "ExtendedDequantizeLinear": DEQUANTIZE,
    "TRT_FP8DequantizeLinear": DEQUANTIZE,
    "TRT_MXFP8DequantizeLinear": DEQUANTIZE,
    QUANTIZE: QUANTIZE,
    "ExtendedQuantizeLinear": QUANTIZE,
    "TRT_FP8QuantizeLinear": QUANTIZE,
    "TRT_FP4DynamicQuantize": QUANTIZE_BLOCKS,
    "TRT_MXFP8DynamicQuantize": QUANTIZE_BLOCKS,
    "MXQuantizeDequantize": ROUND_BLOCKS,
}
_DOMAINS = ("", "ai.onnx", "trt", "trt.plugins", "com.microsoft", "com.amd.quark")

_EIGHT_BITS = {"TRT_FP8QuantizeLinear": E4M3}
#: The block formats that Quark names, with the data type of their elements where ONNX has it.
_QUARK = {
    "fp4_e2m1": ("mxfp4", FLOAT4),
    "fp6_e2m3": ("mxfp6e2m3", None),
    "fp6_e3m2": ("mxfp6e3m2", None),
    "fp8_e4m3": ("mxfp8e4m3", E4M3),
    "fp8_e5m2": ("mxfp8e5m2", E5M2),
}
_BLOCK = 32
NOTE = (
    "products of dequantized tensors are computed from values that are not rounded to f16 or bf16 "
    "before, and summed in f32"
)


def rewrite(model: Any, onnx: Any) -> bool:
    """Put the four operations into the graph of `model`; whether a rounding was left out (NOTE).

    Their types are functions of the model, which onnx's shape inference reads; `forget` takes them
    out. Raises CompileError, with the name of the node, for a form that has no lowering.
    """
    graph = _Graph(model, onnx)
    for node in list(model.graph.node):
        graph.add(node)
    graph.finish()
    return graph.left_out


def forget(model: Any) -> None:
    """Take out the functions that say the types of the four operations."""
    kept = [each for each in model.functions if each.domain != DOMAIN]
    del model.functions[:]
    model.functions.extend(kept)


@dataclass
class _Graph:
    """The graph as it is written anew, node by node."""

    model: Any
    onnx: Any
    nodes: list[Any] = field(default_factory=list)
    left_out: bool = False

    def __post_init__(self) -> None:
        """Look up the tensors that are known."""
        graph = self.model.graph
        self.known = {each.name: each for each in graph.initializer}
        #: A dequantized tensor, cast or transposed or not -> the same before it is rounded.
        self.exact: dict[str, str] = {}
        self.types = {
            each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)
        }
        self.dims = {
            each.name: [one.dim_value for one in each.type.tensor_type.shape.dim]
            for each in graph.input
        }
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.known[node.output[0]] = node.attribute[0].t
        self.types |= {name: each.data_type for name, each in self.known.items()}

    def add(self, node: Any) -> None:
        """One node, and what it becomes."""
        kind = _KINDS.get(node.op_type) if node.domain in _DOMAINS else None
        if kind == DEQUANTIZE:
            self._dequantize(node)
        elif kind == QUANTIZE:
            self._quantize(node)
        elif kind == QUANTIZE_BLOCKS:
            self._quantize_blocks(node)
        elif kind == ROUND_BLOCKS:
            self._round_blocks(node)
        elif node.op_type == "QLinearMatMul" and node.domain in ("", "ai.onnx"):
            self._quantized_product(node)
        elif node.op_type in ("MatMul", "Gemm") and not node.domain:
            self._product(node)
        else:
            self.nodes.append(node)
            if node.op_type == "Cast":
                self.types[node.output[0]] = _attribute(node, "to", 0)
            if node.op_type in ("Cast", "Transpose") and node.input[0] in self.exact:
                self._follow(node)

    def _dequantize(self, node: Any) -> None:
        read = list(node.input)
        if node.op_type == "TRT_MXFP8DequantizeLinear" and read[1] in self.known:
            self.known[read[1]].data_type = E8M0
        told = _attribute(node, "output_dtype", 0)
        kind = told or self.types.get(read[1], FLOAT)
        kind = kind if kind in (HALF, BFLOAT16) else FLOAT
        if len(read) > 2 and read[2] in self.known and not np.any(self._array(read[2])):
            del read[2:]
        read[1] = self._scalar(read[1])
        made = node.output[0]
        exact = made if kind == FLOAT else f"{made}/f32"
        axis, block = _attribute(node, "axis", 1), _attribute(node, "block_size", 0)
        if not block and len(read) == 2:
            axis, block = self._in_blocks(read, axis)
        self._emit(DEQUANTIZE, read, [exact], node.name, axis=axis, block_size=block)
        self.exact[made] = exact
        self.types[made] = kind
        if kind != FLOAT:
            self._cast(exact, made, kind)

    def _in_blocks(self, read: list[str], axis: int) -> tuple[int, int]:
        """Scales of rows of an int8 weight, repeated for blocks of 32; axis and block of `read`.

        Kernels take integers under scales of blocks.
        """
        if not all(name in self.known for name in read):
            return axis, 0
        weight, scale = self.known[read[0]], self._array(read[1])
        rows = axis % max(1, len(weight.dims))
        if weight.data_type != INT8 or len(weight.dims) != 2 or scale.ndim != 1:
            return axis, 0
        count, rest = divmod(weight.dims[1 - rows], _BLOCK)
        if rest:
            return axis, 0
        repeated = np.repeat(np.expand_dims(scale, 1 - rows), count, 1 - rows)
        read[1] = f"{read[1]}/blocks"
        self._give(read[1], repeated.astype(np.float32))
        return 1 - rows, _BLOCK

    def _quantize(self, node: Any) -> None:
        read = [each for each in node.input if each]
        to = _attribute(node, "output_dtype", 0) or _EIGHT_BITS.get(node.op_type, UINT8)
        if len(read) > 2:
            to = self._type(node, read[2])
            if read[2] in self.known and not np.any(self._array(read[2])):
                del read[2:]
        saturate = _attribute(node, "saturate", 1)
        axis, block = _attribute(node, "axis", 1), _attribute(node, "block_size", 0)
        made = node.output[0]
        self.types[made] = to
        if saturate and all(name in self.known for name in read):
            values = [self._array(name) for name in read]
            codes = quantized(*values, axis=axis, block=block, to=to, dtype=self._dtype(to))
            self._give(made, codes)
            return
        read[1] = self._scalar(read[1])
        more = {"axis": axis, "block_size": block, "to": to, "saturate": saturate}
        self._emit(QUANTIZE, read, [made], node.name, **more)

    def _quantize_blocks(self, node: Any) -> None:
        by_tensor = node.op_type == "TRT_FP4DynamicQuantize"
        kinds = (FLOAT4, E4M3) if by_tensor else (E4M3, E8M0)
        block = _attribute(node, "block_size", 16 if by_tensor else 32)
        wanted = FORMATS["nvfp4" if by_tensor else "mxfp8e4m3"].block
        if block != wanted or _attribute(node, "axis", -1) != -1:
            raise CompileError(
                f"{node.name}: {node.op_type} in blocks of {block} along axis "
                f"{_attribute(node, 'axis', -1)}; wanted {wanted} along the last, -1",
                phase="import",
            )
        read = [node.input[0], *map(self._scalar, node.input[1:])]
        more = {"axes": [-1], "steps": [block], "to": kinds[0], "scale_type": kinds[1]}
        self._emit(QUANTIZE_BLOCKS, read, list(node.output), node.name, **more)
        self.types |= dict(zip(node.output, kinds, strict=True))

    def _round_blocks(self, node: Any) -> None:
        name = _attribute(node, "element_dtype", b"int8").decode()
        format, kind = _QUARK.get(name, (None, None))
        block, axis = _attribute(node, "block_size", 32), _attribute(node, "axis", 1)
        source, made = node.input[0], node.output[0]
        if format is None or block != FORMATS[format].block:
            raise CompileError(
                f"{node.name}: MXQuantizeDequantize to {name} in blocks of {block} has no "
                f"lowering; wanted {', '.join(_QUARK)} in blocks of 32",
                phase="import",
            )
        if source not in self.known:
            self._emit(ROUND_BLOCKS, [source], [made], node.name, axis=axis, format=format)
            self.exact[made] = made
            return
        if kind is None:
            raise CompileError(
                f"{node.name}: weight {source} is rounded to {format}, whose elements ONNX "
                "does not have; give the weights in a checkpoint",
                phase="import",
            )
        found = quantize(
            self._array(source).astype(np.float32), format, axis=axis, recipe=ScaleRecipe.FLOOR
        )
        codes = unpack_elements(found.elements, format)
        for part, array, to in ((".elements", codes, kind), (".scales", found.scales, E8M0)):
            values = np.ascontiguousarray(array).view(self._dtype(to))
            self._give(f"{source}{part}", np.moveaxis(values, -1, found.axis))
        read = [f"{source}.elements", f"{source}.scales"]
        self._emit(DEQUANTIZE, read, [made], node.name, axis=axis, block_size=block)
        self.exact[made] = made

    def _quantized_product(self, node: Any) -> None:
        """A QLinearMatMul as MatMulInteger, scaled, and quantized again.

        The importer forgets zero points where there is a batch.
        """
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = node.input
        name, made = node.name, node.output[0]
        if self._size(a_scale) > 1:
            raise CompileError(f"{name}: a scale for each row of {a} has no lowering", "import")
        to = self._type(node, zero)
        least, most = (f"{name}/{bound}" for bound in LIMITS[to])
        for bound, number in zip((least, most), LIMITS[to], strict=True):
            self._give(bound, np.array(number, np.float32))
        cast = {each: f"{name}/{each}/f32" for each in (a_scale, b_scale, scale, zero)}
        for each, wide in cast.items():
            self._cast(each, wide, FLOAT)
        self._step("MatMulInteger", [a, b, a_zero, b_zero], f"{name}/sum")
        found = self._cast(f"{name}/sum", f"{name}/sum/f32", FLOAT)
        found = self._step("Mul", [found, cast[a_scale]], f"{name}/by_a")
        found = self._step("Mul", [found, cast[b_scale]], f"{name}/by_b")
        found = self._step("Div", [found, cast[scale]], f"{name}/quotient")
        found = self._step("Round", [found], f"{name}/rounded")
        found = self._step("Add", [found, cast[zero]], f"{name}/moved")
        found = self._step("Clip", [found, least, most], f"{name}/limited")
        self._cast(found, made, to)
        self.types[made] = to

    def _product(self, node: Any) -> None:
        sides = list(node.input[:2])
        if all(self.exact.get(side, side) == side for side in sides):
            self.nodes.append(node)
            return
        self.left_out = True
        made = node.output[0]
        kinds = [self.types[s] for s in sides if self.exact.get(s, s) != s]
        read = [self.exact.get(s) or self._cast(s, f"{node.name}/{s}/f32", FLOAT) for s in sides]
        kinds = [self.types[made]] if made in self.types else kinds
        if len(node.input) > 2 and node.input[2]:
            kinds = [self.types.get(node.input[2], kinds[0])]
            read.append(self._cast(node.input[2], f"{node.name}/{node.input[2]}/f32", FLOAT))
        del node.input[:]
        node.input.extend(read)
        node.output[0] = f"{made}/f32"
        self.nodes.append(node)
        self._cast(node.output[0], made, kinds[0])

    def _follow(self, node: Any) -> None:
        """A Cast to a float or a Transpose of a dequantized tensor: the same, not rounded."""
        exact, made = self.exact[node.input[0]], node.output[0]
        kind = _attribute(node, "to", 0) or self.types.get(node.input[0], FLOAT)
        if kind not in (FLOAT, HALF, BFLOAT16):
            return
        self.types[made] = kind
        if node.op_type == "Transpose" and exact != node.input[0]:
            copy = self.onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[0], copy.output[0] = exact, f"{made}/f32"
            self.nodes.append(copy)
            exact = copy.output[0]
        elif node.op_type == "Transpose":
            exact = made
        self.exact[made] = exact

    def finish(self) -> None:
        """Write the nodes that are read, the tensors, and the types of the four operations."""
        graph = self.model.graph
        read = {each.name for each in graph.output}
        kept = []
        for node in reversed(self.nodes):
            if node.op_type in ("Cast", "Transpose") and not read & set(node.output):
                continue
            read |= set(node.input)
            kept.append(node)
        del graph.node[:]
        graph.node.extend(reversed(kept))
        tensors = [each for name, each in self.known.items() if each.name == name and name in read]
        del graph.initializer[:]
        graph.initializer.extend(tensors)
        del graph.value_info[:]
        self.model.functions.extend(types_of(self.onnx))
        self.model.opset_import.append(self.onnx.helper.make_opsetid(DOMAIN, 1))

    def _emit(self, kind: str, read: list[str], made: list[str], name: str, **more: Any) -> None:
        self.nodes.append(
            self.onnx.helper.make_node(kind, read, made, name=name, domain=DOMAIN, **more)
        )

    def _step(self, kind: str, read: list[str], made: str, **more: Any) -> str:
        """An operation of ONNX itself."""
        self.nodes.append(self.onnx.helper.make_node(kind, read, [made], made, **more))
        return made

    def _type(self, node: Any, zero: str) -> int:
        """The data type of a zero point, which is that of what its node makes."""
        if zero not in self.types:
            raise CompileError(
                f"{node.name}: the type of its zero point {zero} is not known; cast it before",
                phase="import",
            )
        return int(self.types[zero])

    def _size(self, name: str) -> int:
        """Elements of a tensor as far as they are known, else 1."""
        dims = self.known[name].dims if name in self.known else self.dims.get(name, ())
        return int(np.prod([size for size in dims if size > 0]))

    def _cast(self, source: str, made: str, kind: int) -> str:
        return self._step("Cast", [source], made, to=kind)

    def _array(self, name: str) -> NDArray[Any]:
        return np.asarray(self.onnx.numpy_helper.to_array(self.known[name]))

    def _dtype(self, kind: int) -> Any:
        return self.onnx.helper.tensor_dtype_to_np_dtype(kind)

    def _give(self, name: str, array: NDArray[Any]) -> None:
        self.known[name] = self.onnx.numpy_helper.from_array(array, name)

    def _scalar(self, name: str) -> str:
        """Scales in f16 or bf16, and those of one number, as f32; one has no dimensions."""
        if name not in self.known:
            return name
        array = self._array(name)
        if array.size > 1 and self.known[name].data_type not in (HALF, BFLOAT16):
            self.known[name].name = name  # the tensor of a Constant has no name
            return name
        self._give(f"{name}/f32", array.astype(np.float32).reshape(array.shape * (array.size > 1)))
        return f"{name}/f32"


def _attribute(node: Any, name: str, usual: Any) -> Any:
    for each in node.attribute:
        if each.name == name:
            return each.s if each.type == 3 else each.i
    return usual
