"""Operators of ONNX that IREE's importer lacks, or lowers to other numbers than ONNX defines."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.programs.onnx_functions import FUNCTIONS
from mxc.compiler.report import Report
from mxc.errors import MxcError
from tests.compiler.programs.onnx_modules import given

#: Cases of the package onnx, with inputs and results.
SHIPPED = (
    "rms_normalization_4d_axis_negative_1",
    "rms_normalization_4d_axis_negative_4_expanded",
    "rotary_embedding_with_interleaved_rotary_dim",
    "attention_3d_gqa_causal",
    "attention_4d_with_past_and_present_qk_matmul",
    "attention_4d_diff_heads_mask4d_padded_kv",
    "flexattention_scaled",
    "sce_mean_weight_log_prob",
    "gelu_tanh_2",
    "l1normalization_axis_1",
    "l2normalization_axis_0",
    "cast_FLOAT_to_FLOAT8E4M3FN",
    "cast_FLOAT_to_FLOAT8E5M2FNUZ",
    "cast_no_saturate_FLOAT16_to_FLOAT8E5M2",
    "castlike_FLOAT_to_FLOAT8E5M2FNUZ",
    "dequantizelinear_e4m3fn_zero_point",
    "dequantizelinear_uint4",
    "quantizelinear_axis",
    "quantizelinear_e4m3fn",
)
HEADS, KEYS = (1, 4, 16, 64), (1, 2, 16, 64)


def attention(queries: tuple[int, ...], keys: tuple[int, ...], **more: Any) -> onnx.ModelProto:
    """The operator of ONNX 24 with queries [batch, heads, rows, depth]."""
    value = helper.make_tensor_value_info
    shapes = {"q": queries, "k": keys, "v": keys}
    inputs = [value(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="layer.0", **more)
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, queries)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


ATTENTION = {
    "every_key": attention(HEADS, HEADS),
    "causal": attention(HEADS, HEADS, is_causal=1),
    "heads_share_keys": attention(HEADS, KEYS, is_causal=1, scale=0.5),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("operators")
    files = {name: given(f"node/test_{name}")[0] for name in SHIPPED}
    for name, model in ATTENTION.items():
        files[name] = folder / f"{name}.onnx"
        onnx.save(model, files[name])
    return mxc.compile(files, output=folder / "all.mxc")


@pytest.fixture(scope="module")
def model(compiled: Artifact) -> Any:
    return mxc.load(compiled.path, threads=1)


@pytest.mark.parametrize("name", SHIPPED)
def test_numbers_are_those_that_onnx_ships(model: Any, name: str) -> None:
    _, values, wanted = given(f"node/test_{name}")
    # Integers of 4 bits are bytes at the boundary.
    values = [each.astype(np.int8) if each.dtype.name == "uint4" else each for each in values]
    for found, one in zip(model.call(name, *values), wanted, strict=True):
        # Bytes have no sign there.
        found, one = (each.view(one.dtype).astype(np.float32) for each in (found, one))
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_a_kernel_of_ours(model: Any, compiled: Artifact, name: str) -> None:
    random = np.random.default_rng(0)
    shapes = [each.type.tensor_type.shape.dim for each in ATTENTION[name].graph.input]
    values = [
        random.standard_normal([each.dim_value for each in shape]).astype(np.float32)
        for shape in shapes
    ]
    evaluator: Any = ReferenceEvaluator(ATTENTION[name])
    wanted = evaluator.run(None, dict(zip("qkv", values, strict=True)))
    np.testing.assert_allclose(model.call(name, *values)[0], wanted[0], rtol=1e-4, atol=1e-5)
    report = Report.from_dict(json.loads((compiled.path / REPORT).read_text()))
    kernels = [one.kernel for one in report.operations if one.function == name]
    assert any(kernel.startswith("mxc_attention") for kernel in kernels)


def _node(kind: str, made: int, more: dict[str, Any]) -> onnx.ModelProto:
    """A node without a name of two tensors."""
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [1, 1, 8, 8]), value("like", made, [1, 8, 8, 2])]
    given = ["x", "like"] if kind in ("CastLike", "GridSample") else ["x"]
    node = helper.make_node(kind, given, ["y"], **more)
    graph = helper.make_graph([node], "g", inputs, [value("y", made, ["a", "b", "c", "d"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _padded() -> onnx.ModelProto:
    made = _node("Pad", TensorProto.FLOAT, {})
    made.graph.node[0].input.append("by")
    by = np.array([0, 0, 1, 0, 0, 0, -1, 0], np.int64)
    made.graph.initializer.append(onnx.numpy_helper.from_array(by, "by"))
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (_padded(), "y: Pad by negative numbers has no lowering"),
        (
            _node("AveragePool", TensorProto.FLOAT, {"kernel_shape": [2, 2], "dilations": [2, 2]}),
            "y: AveragePool with dilations has no lowering",
        ),
        (
            _node("GridSample", TensorProto.FLOAT, {"mode": "nearest"}),
            "y: GridSample has no lowering",
        ),
        (
            _node("Cast", TensorProto.INT4, {"to": TensorProto.INT4}),
            "y: a Cast to INT4 has no lowering; quantize with QuantizeLinear, or cast to INT8",
        ),
        (_node("CastLike", TensorProto.UINT4, {}), "y: a CastLike to UINT4 has no lowering"),
        (
            _node("GridSample", TensorProto.FLOAT, {"domain": "ai.onnx"}),
            "y: GridSample has no lowering",
        ),
    ],
)
def test_forms_with_other_numbers_are_refused(
    tmp_path: Path, made: onnx.ModelProto, said: str
) -> None:
    file = tmp_path / "x.onnx"
    onnx.save(made, file)
    with pytest.raises(MxcError) as caught:
        mxc.compile(file, output=tmp_path / "x.mxc")
    assert said in str(caught.value)


def test_peepholes_are_refused(tmp_path: Path) -> None:
    file, *_ = given("node/test_lstm_with_peepholes")
    with pytest.raises(MxcError, match="LSTM with peepholes has no lowering"):
        mxc.compile(file, output=tmp_path / "x.mxc")


def test_an_operator_in_a_branch_is_refused(tmp_path: Path) -> None:
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    branches = {
        name: helper.make_graph(
            [helper.make_node("Det", ["x"], [name], name=name)], name, [], [value(name, kind, [])]
        )
        for name in ("then_branch", "else_branch")
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = [value("c", TensorProto.BOOL, []), value("x", kind, [2, 2])]
    graph = helper.make_graph([node], "g", inputs, [value("y", kind, [])])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "x.onnx")
    with pytest.raises(MxcError, match="_branch: Det has no lowering"):
        mxc.compile(tmp_path / "x.onnx", output=tmp_path / "x.mxc")


#: Operators of bytes, with constants of which the bytes from 128 on count, and numbers of results.
BYTES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "divided": ("Div", [np.array([3], np.uint8)], {}),
    "divided by bytes": ("Div", [np.array([200], np.uint8)], {}),
    "rest": ("Mod", [np.array([77], np.uint8)], {}),
    "clipped": ("Clip", [np.array(10, np.uint8), np.array(200, np.uint8)], {}),
    "absolute": ("Abs", [], {}),
    "largest": ("TopK", [np.array([3])], {"axis": 2}),
    "pooled": ("MaxPool", [], {"kernel_shape": [2]}),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_have_no_sign(name: str, tmp_path: Path) -> None:
    operator, constants, more = BYTES[name]
    x = np.random.default_rng(0).permutation(240).astype(np.uint8).reshape(1, 4, 60)
    value, made = helper.make_tensor_value_info, ["y", "i"] if operator == "TopK" else ["y"]
    kinds = dict(zip(made, (TensorProto.UINT8, TensorProto.INT64), strict=False))
    given_names = [f"c{number}" for number in range(len(constants))]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *given_names], made, **more)],
        "g",
        [value("x", TensorProto.UINT8, x.shape)],
        [value(each, kind, ["a", "b", "c"]) for each, kind in kinds.items()],
        [
            onnx.numpy_helper.from_array(each, own)
            for own, each in zip(given_names, constants, strict=True)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.save(model, tmp_path / "x.onnx")
    artifact = mxc.compile(tmp_path / "x.onnx", output=tmp_path / "x.mxc")
    wanted: Any = ReferenceEvaluator(model).run(None, {"x": x})
    for found, each in zip(mxc.load(artifact.path).call("main", x), wanted, strict=True):
        np.testing.assert_array_equal(found.view(each.dtype), each)


#: Equations of products of two tensors, and the sizes of their letters.
EQUATIONS = ("bmk,kn->bmn", "bmk,bnk->bmn", "bhmk,bhnk->bhmn", "bkm,bkn->bnm", "kn,abk->nab")
LETTERS = {"a": 3, "b": 2, "h": 4, "m": 7, "n": 5, "k": 16}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_products_of_dynamic_sizes(equation: str, tmp_path: Path) -> None:
    value, sides = helper.make_tensor_value_info, equation.split("->")[0].split(",")
    inputs = [
        value(f"x{at}", TensorProto.FLOAT, [LETTERS[c] if c == "k" else c for c in side])
        for at, side in enumerate(sides)
    ]
    node = helper.make_node("Einsum", ["x0", "x1"], ["y"], equation=equation)
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "einsum.onnx")
    made = mxc.compile(tmp_path / "einsum.onnx", output=tmp_path / "out.mxc", listing=False)
    random = np.random.default_rng(0)
    operands = [
        random.integers(-4, 5, [LETTERS[c] for c in side]).astype(np.float32) for side in sides
    ]
    (found,) = mxc.load(made.path).call("main", *operands)
    np.testing.assert_array_equal(found, np.einsum(equation, *operands))


IMAGES = np.random.default_rng(0).integers(-4, 5, (2, 4, 6, 4)).astype(np.float32)
FILTERS = np.random.default_rng(1).integers(-2, 3, (4, 2, 3, 3)).astype(np.float32)
CHANNELS = np.arange(1, 5).astype(np.float32)
#: Operators on images, and the inputs that they have beside them. Of windows that move by two, the
#: result is one element wide: IREE reads others where the batch is dynamic, and refuses the program
#: where it is not. Of an instance it counts dynamic elements wrong.
ON_IMAGES: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
    "Conv": ({"strides": [2, 2], "group": 2}, {"w": FILTERS}),
    "MaxPool": ({"strides": [2, 2], "kernel_shape": [3, 3]}, {}),
    "AveragePool": ({"strides": [2, 2], "kernel_shape": [3, 3]}, {}),
    "InstanceNormalization": ({}, {"scale": CHANNELS, "bias": CHANNELS}),
}


@pytest.mark.parametrize("dimensions", [(2, 4, 6, 4), ("n", 4, 6, 4), ("n", 4, "h", "w")])
@pytest.mark.parametrize("name", ON_IMAGES)
def test_images(name: str, dimensions: tuple[Any, ...], tmp_path: Path) -> None:
    attributes, beside = ON_IMAGES[name]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, ["x", *beside], ["y"], **attributes)],
        "g",
        [value("x", TensorProto.FLOAT, dimensions)],
        [value("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(each, key) for key, each in beside.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "images.onnx")
    made = mxc.compile(tmp_path / "images.onnx", output=tmp_path / "out.mxc", listing=False)
    (found,) = mxc.load(made.path).call("main", IMAGES)
    (right,) = ReferenceEvaluator(model).run(None, {"x": IMAGES})
    np.testing.assert_allclose(found, np.asarray(right), rtol=1e-5, atol=1e-5)


#: Dimensions of a tensor, the shape that it gets, and its sizes in a call. IREE's importer takes b
#: for 1 in the first four.
RESHAPES: tuple[tuple[tuple[str | int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    (("t", "b", 4, 16), (-1, 64), (7, 2, 4, 16)),
    (("t", 2, "b", 16), (-1, 32), (7, 2, 4, 16)),
    (("t", "b", 64), (1, -1, 64), (2, 7, 64)),
    (("t", "b", 64), (-1, 1, 64), (2, 7, 64)),
    (("t", "b", 4, 16), (0, -1, 64), (7, 2, 4, 16)),
    (("t", "b", 64), (-1, 64), (2, 7, 64)),
    (("t", "b", 64), (0, 0, 4, 16), (2, 7, 64)),
    (("t", "b", 4, 16), (-1, 2, 32), (7, 2, 4, 16)),
)


@pytest.mark.parametrize(("dimensions", "shape", "sizes"), RESHAPES)
def test_reshapes_of_dynamic_sizes(
    dimensions: tuple[Any, ...], shape: tuple[int, ...], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    value = helper.make_tensor_value_info
    wanted = onnx.numpy_helper.from_array(np.array(shape, np.int64), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, dimensions)],
        [value("y", TensorProto.FLOAT, None)],
        [wanted],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "reshape.onnx")
    made = mxc.compile(tmp_path / "reshape.onnx", output=tmp_path / "out.mxc", listing=False)
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    (found,) = mxc.load(made.path).call("main", x)
    (right,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(found, right)


def test_a_size_that_is_no_integer_is_refused(tmp_path: Path) -> None:
    file, *_ = given("node/test_resize_downsample_scales_linear_align_corners")
    model = onnx.load(file)
    scales = np.array([1, 1, 0.6, 0.6], np.float32)
    with pytest.raises(MxcError, match="Resize with align_corners to a size that is no integer"):
        mxc.compile(_with(model, "scales", scales, tmp_path), output=tmp_path / "x.mxc")


def _with(model: onnx.ModelProto, name: str, array: Any, folder: Path) -> Path:
    """A file of the model with an argument as an initializer."""
    for each in [each for each in model.graph.input if each.name == name]:
        model.graph.input.remove(each)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "given.onnx")
    return folder / "given.onnx"


def test_a_loop_is_refused_by_its_own_name(tmp_path: Path) -> None:
    """Not by that of an operation in it."""
    file, *_ = given("node/test_scan_sum")
    with pytest.raises(MxcError, match=r"^y: onnx\.Scan has no lowering"):
        mxc.compile(file, output=tmp_path / "x.mxc")


def test_every_function_has_a_definition() -> None:
    for domain, name in FUNCTIONS:
        schema: Any = onnx.defs.get_schema(name, domain=domain)
        assert schema.has_function or schema.has_context_dependent_function
