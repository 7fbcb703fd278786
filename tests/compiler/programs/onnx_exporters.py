"""Linear layers in the forms that exporters write, and what they compute by numpy."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.programs.onnx_modules import K, N

#: NVIDIA modelopt 0.47 (domain trt), AMD Quark 0.13 (domain com.amd.quark), onnxruntime.
GRAPHS = ("fp8", "int8", "int4", "mxfp8", "nvfp4", "quark_mxfp4", "quark_mxfp8", "microsoft")
_F16, _F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def exported(name: str) -> onnx.ModelProto:
    """x [5, K] times a weight, as the exporter of a format writes it."""
    weight = np.random.default_rng(7).standard_normal((N, K)).astype(np.float32)
    graph = _Graph(_F16 if name in ("mxfp8", "int4") else _F32)
    getattr(graph, "_".join(("make", name)))(weight)
    return graph.model()


class _Graph:
    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        sides = [
            helper.make_tensor_value_info(n, self.kind, [5, s]) for n, s in (("x", K), ("y", N))
        ]
        graph = helper.make_graph(self.nodes, "layer", sides[:1], sides[1:], self.tensors)
        domains = {"", *(node.domain for node in self.nodes)}
        opsets = [helper.make_opsetid(each, 1 if each else 23) for each in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def node(self, kind: str, read: list[str], *made: str, domain: str = "", **more: Any) -> str:
        name = f"{made[0]} of {kind}"
        self.nodes.append(helper.make_node(kind, read, made, name=name, domain=domain, **more))
        return made[0]

    def tensor(self, name: str, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def constant(self, name: str, array: Any) -> str:
        return self.node("Constant", [], name, value=numpy_helper.from_array(np.asarray(array)))

    def multiply(self, x: str, weight: str) -> None:
        self.node("MatMul", [x, self.node("Transpose", [weight], "turned", perm=[1, 0])], "y")

    def make_fp8(self, weight: NDArray[np.float32]) -> None:
        scale, zero = np.float32(0.01), np.zeros(1, ml_dtypes.float8_e4m3fn)
        read = ["x", self.tensor("scale_x", scale), self.tensor("zero_x", zero)]
        q = self.node("QuantizeLinear", read, "q", domain="trt", saturate=1)
        codes = self.tensor("w", (weight / np.float32(0.02)).astype(ml_dtypes.float8_e4m3fn))
        own = [codes, self.tensor("scale_w", np.float32(0.02))]
        x = self.node("DequantizeLinear", [q, "scale_x"], "d", domain="trt")
        self.multiply(x, self.node("DequantizeLinear", own, "weight", domain="trt"))

    def make_int8(self, weight: NDArray[np.float32], domain: str = "") -> None:
        one = [self.constant("scale_x", np.float32(0.05)), self.constant("zero_x", np.int8(0))]
        rows = np.abs(weight).max(1) / np.float32(127)
        many = [self.constant("rows", rows), self.constant("zeros", np.zeros(N, np.int8))]
        q = self.node("QuantizeLinear", ["x", *one], "q", domain=domain)
        w = ["w", *many]
        self.tensor("w", weight)
        if domain:
            self.tensors[-1].CopyFrom(
                numpy_helper.from_array(np.rint(weight / rows[:, None]).astype(np.int8), "w")
            )
        else:
            w[0] = self.node("QuantizeLinear", w, "qw", axis=0)
        x = self.node("DequantizeLinear", [q, *one], "d", domain=domain)
        self.multiply(x, self.node("DequantizeLinear", w, "weight", domain=domain, axis=0))

    def make_microsoft(self, weight: NDArray[np.float32]) -> None:
        self.make_int8(weight, "com.microsoft")

    def make_int4(self, weight: NDArray[np.float32]) -> None:
        codes = np.random.default_rng(8).integers(-8, 8, (K, N)).astype(ml_dtypes.int4)
        scales = np.random.default_rng(9).random((K // 64, N)).astype(np.float16)
        read = [self.tensor("w", codes), self.tensor("scales", scales)]
        more: dict[str, Any] = {"domain": "trt", "axis": 0, "block_size": 64}
        self.node("MatMul", ["x", self.node("DequantizeLinear", read, "weight", **more)], "y")

    def make_mxfp8(self, weight: NDArray[np.float32]) -> None:
        blocks = weight.reshape(N, -1, 32)
        powers = np.ceil(np.log2(np.abs(blocks).max(-1) / 448))
        codes = (blocks / np.exp2(powers)[..., None]).astype(ml_dtypes.float8_e4m3fn)
        own = [self.tensor("w", codes.reshape(N, K)), self.tensor("s", (powers + 127).astype("u1"))]
        more: dict[str, Any] = {"domain": "trt", "axis": -1, "block_size": 32}
        self.node("TRT_MXFP8DynamicQuantize", ["x"], "q", "p", output_dtype=17, **more)
        kind = "TRT_MXFP8DequantizeLinear"
        x = self.node(kind, ["q", "p"], "d", output_dtype=_F16, **more)
        self.multiply(x, self.node(kind, own, "weight", output_dtype=_F16, **more))

    def make_nvfp4(self, weight: NDArray[np.float32]) -> None:
        blocks, whole = weight.reshape(N, -1, 16), np.array([0.0007], np.float32)
        scales = (np.abs(blocks).max(-1) / 6 / whole).astype(ml_dtypes.float8_e4m3fn)
        codes = blocks / (scales.astype(np.float32) * whole)[..., None]
        own = [
            self.tensor("w", codes.reshape(N, K).astype(ml_dtypes.float4_e2m1fn)),
            self.node(
                "DequantizeLinear", [self.tensor("s", scales), self.tensor("t", whole)], "st"
            ),
        ]
        more: dict[str, Any] = {"axis": -1, "block_size": 16}
        one = self.constant("whole", np.float32(0.002))
        self.node(
            "TRT_FP4DynamicQuantize", ["x", one], "q", "p", domain="trt", scale_type=17, **more
        )
        scale = self.node("DequantizeLinear", ["p", one], "sx")
        x = self.node("DequantizeLinear", ["q", scale], "d", **more)
        w = self.node("DequantizeLinear", own, "weight", **more)
        turned = self.node("Transpose", [w], "turned", perm=[1, 0])
        read = [self.node("Cast", [each], f"{each}_f16", to=_F16) for each in (x, turned)]
        self.node("MatMul", read, "y")

    def make_quark_mxfp4(self, weight: NDArray[np.float32], name: str = "fp4_e2m1") -> None:
        more: dict[str, Any] = {"domain": "com.amd.quark", "element_dtype": name, "axis": 1}
        x = self.node("MXQuantizeDequantize", ["x"], "d", block_size=32, **more)
        read = [self.tensor("w", weight)]
        self.multiply(x, self.node("MXQuantizeDequantize", read, "weight", block_size=32, **more))

    def make_quark_mxfp8(self, weight: NDArray[np.float32]) -> None:
        self.make_quark_mxfp4(weight, "fp8_e4m3")


def evaluated(model: onnx.ModelProto, x: NDArray[Any]) -> NDArray[Any]:
    """What the graph computes for x; products are of what is not rounded to f16, in float64."""
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    known["x"] = x
    for node in model.graph.node:
        read = [known[name] for name in node.input]
        more = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        for name, value in zip(node.output, _computed(node.op_type, read, more), strict=True):
            known[name] = value
    kind = helper.tensor_dtype_to_np_dtype(model.graph.output[0].type.tensor_type.elem_type)
    return np.asarray(known["y"].astype(kind))


def _computed(kind: str, read: list[Any], more: dict[str, Any]) -> list[Any]:
    if kind == "Constant":
        return [numpy_helper.to_array(more["value"])]
    if kind == "Transpose":
        return [read[0].T]
    if kind == "MatMul":
        return [read[0].astype(np.float64) @ read[1].astype(np.float64)]
    if kind == "Cast":
        return [read[0]]
    if kind in ("DequantizeLinear", "TRT_MXFP8DequantizeLinear"):
        scale = read[1].view(ml_dtypes.float8_e8m0fnu) if read[1].dtype == np.uint8 else read[1]
        return [read[0].astype(np.float32) * _spread(scale, read[0], more)]
    if kind == "QuantizeLinear":
        value = read[0] / _spread(read[1], read[0], more)
        if read[2].dtype == np.int8:
            return [np.clip(np.rint(value), -128, 127).astype(np.int8)]
        return [np.clip(value, -448, 448).astype(read[2].dtype)]
    block = more["block_size"]
    x = read[0].astype(np.float32).reshape(*read[0].shape[:-1], -1, block)
    amax = np.abs(x).max(-1, keepdims=True)
    if kind == "TRT_FP4DynamicQuantize":
        scale = np.clip(amax / np.float32(6) / read[1], 2**-6, 448).astype(ml_dtypes.float8_e4m3fn)
        codes = x * (np.float32(1) / read[1] / scale.astype(np.float32))
        return [codes.astype(ml_dtypes.float4_e2m1fn).reshape(read[0].shape), scale[..., 0]]
    if kind == "TRT_MXFP8DynamicQuantize":
        power = np.ceil(np.log2(amax / 448))
        codes = (x / np.exp2(power)).astype(ml_dtypes.float8_e4m3fn)
        return [codes.reshape(read[0].shape), (power[..., 0] + 127).astype(np.uint8)]
    largest, dtype = {
        b"fp4_e2m1": (6, ml_dtypes.float4_e2m1fn), b"fp8_e4m3": (448, ml_dtypes.float8_e4m3fn),
    }[more["element_dtype"]]  # fmt: skip
    power = np.exp2(np.floor(np.log2(amax)) - np.floor(np.log2(largest)))
    codes = np.clip(x / power, -largest, largest).astype(dtype).astype(np.float32)
    return [(codes * power).reshape(read[0].shape)]


def _spread(scale: Any, x: Any, more: dict[str, Any]) -> Any:
    """A scale for each element."""
    axis, scale = more.get("axis", 1), scale.astype(np.float32)
    if scale.size == 1:
        return scale.reshape(())
    if "block_size" in more:
        return np.repeat(scale, more["block_size"], axis)
    return np.expand_dims(scale, 1 - axis)
