"""Models of ONNX: those that the package ships as tests of backends, and quantized layers."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
#: Models of the package onnx, which come with inputs and outputs.
BACKEND = {
    "linear": "pytorch-converted/test_Linear",
    "conv": "pytorch-converted/test_Conv2d",
    "addmm": "pytorch-operator/test_operator_addmm",
    "attention": "node/test_attention_4d_expanded",
    "gemm": "node/test_gemm_default_matrix_bias",
    "blocked": "node/test_dequantizelinear_blocked",
    "layer_norm": "node/test_layer_normalization_4d_axis1",
    "quantized": "node/test_qlinearmatmul_2D_uint8_float32",
    "quantized_signed": "node/test_qlinearmatmul_3D_int8_float32",
}
K, N = 128, 64


def given(name: str) -> tuple[Path, list[NDArray[Any]], list[NDArray[Any]]]:
    """A model of the package, or of BACKEND: its file, what it is given, what it gives."""
    folder = DATA / BACKEND.get(name, name)

    def arrays(kind: str) -> list[NDArray[Any]]:
        files = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"))
        protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
        return [numpy_helper.to_array(each) for each in protos]

    return folder / "model.onnx", arrays("input"), arrays("output")


class Layer:
    """x [rows, K] times a weight [N, K] that one or two DequantizeLinear make."""

    def __init__(self, elements: onnx.TensorProto, scale: onnx.TensorProto, **more: Any) -> None:
        """`more`: attributes, `wanted` [N, K] f32, and tensors `zero`, `whole` (of scales)."""
        self.wanted = more.pop("wanted")
        own = [elements, scale]
        nodes, scale_name, zero = [], scale.name, more.pop("zero", None)
        if (whole := more.pop("whole", None)) is not None:
            nodes.append(_node("DequantizeLinear", [scale.name, whole.name], "scales"))
            own.append(whole)
            scale_name = "scales"
        read = [elements.name, scale_name]
        if zero is not None:
            own.append(zero)
            read.append(zero.name)
        nodes += [
            _node("DequantizeLinear", read, "weight", **more),
            _node("Transpose", ["weight"], "turned", perm=[1, 0]),
            _node("MatMul", ["x", "turned"], "y"),
        ]
        sides = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
            for name, size in (("x", K), ("y", N))
        ]
        graph = helper.make_graph(nodes, "layer", sides[:1], sides[1:], own)
        opset = helper.make_opsetid("", 25)
        self.model = helper.make_model(graph, opset_imports=[opset], ir_version=11)


def _node(kind: str, read: list[str], made: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, read, [made], name=f"{made} of {kind}", **attributes)


def _tensor(name: str, kind: int, shape: tuple[int, ...], data: NDArray[Any]) -> Any:
    return helper.make_tensor(name, kind, shape, data.tobytes(), raw=True)


def _by(values: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    repeated = np.repeat(scales.astype(np.float32), K // scales.shape[1], axis=1)
    return values.astype(np.float32) * repeated


def layers() -> dict[str, Layer]:
    """Every kind of scale and element."""
    random = np.random.default_rng(0)
    packed = random.integers(0, 256, (N, K // 2), np.uint8)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(N, K)
    fp4 = codes.view(ml_dtypes.float4_e2m1fn)
    int4 = (codes.astype(np.int8) ^ 8) - 8
    fp8 = random.standard_normal((N, K)).astype(ml_dtypes.float8_e4m3fn)
    byte = random.integers(0, 256, (N, K), np.uint8)
    e8m0 = random.integers(120, 130, (N, K // 32), np.uint8).view(ml_dtypes.float8_e8m0fnu)
    e4m3 = random.random((N, K // 16)).astype(ml_dtypes.float8_e4m3fn)
    floats = random.random((N, K // 32)).astype(np.float32)
    zeros = random.integers(0, 256, (N, K // 32), np.uint8)
    f4 = _tensor("elements_f4", TensorProto.FLOAT4E2M1, (N, K), packed)
    powers = _tensor("powers", TensorProto.FLOAT8E8M0, (N, K // 32), e8m0)
    by_block = {"axis": 1, "block_size": 32}
    return {
        "mxfp4": Layer(
            f4, powers, **by_block, output_dtype=TensorProto.FLOAT, wanted=_by(fp4, e8m0)
        ),
        "mxfp8": Layer(
            _tensor("elements_f8", TensorProto.FLOAT8E4M3FN, (N, K), fp8),
            powers,
            **by_block,
            output_dtype=TensorProto.FLOAT,
            wanted=_by(fp8, e8m0),
        ),
        "nvfp4": Layer(
            f4,
            _tensor("scales_f8", TensorProto.FLOAT8E4M3FN, (N, K // 16), e4m3),
            whole=numpy_helper.from_array(np.array(1, np.float32), "whole"),
            axis=1,
            block_size=16,
            wanted=_by(fp4, e4m3),
        ),
        "int8": Layer(
            numpy_helper.from_array(byte.view(np.int8), "elements_i8"),
            numpy_helper.from_array(floats[:, 0], "rows"),
            axis=0,
            wanted=_by(byte.view(np.int8), floats[:, :1]),
        ),
        "int4": Layer(
            _tensor("elements_i4", TensorProto.INT4, (N, K), packed),
            numpy_helper.from_array(floats, "floats"),
            **by_block,
            wanted=_by(int4, floats),
        ),
        "zeros": Layer(
            numpy_helper.from_array(byte, "elements_u8"),
            numpy_helper.from_array(floats, "floats"),
            zero=numpy_helper.from_array(zeros, "zeros"),
            **by_block,
            wanted=_by(byte.astype(np.float32) - np.repeat(zeros, 32, axis=1), floats),
        ),
    }


def dynamic_quantized() -> onnx.ModelProto:
    """Activations quantized and dequantized, as exporters write QDQ graphs."""
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(3, np.int8), "zero")
    weight = np.random.default_rng(1).standard_normal((K, N)).astype(np.float32)
    nodes = [
        _node("QuantizeLinear", ["x", "scale", "zero"], "q"),
        _node("DequantizeLinear", ["q", "scale", "zero"], "d"),
        _node("MatMul", ["d", "w"], "y"),
    ]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, size])
        for name, size in (("x", K), ("y", N))
    ]
    own = [scale, zero, numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "qdq", sides[:1], sides[1:], own)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
