"""Programs from ONNX: the numbers are those of ONNX, and quantized weights are packed."""

import copy
import json
import re
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
from mxc.compiler.report import Report
from mxc.errors import MxcError
from tests.compiler.programs.onnx_exporters import GRAPHS, evaluated, exported
from tests.compiler.programs.onnx_modules import BACKEND, K, dynamic_quantized, given, layers

LAYERS = layers()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("onnx")
    files = {name: given(name)[0] for name in BACKEND}
    for name, layer in LAYERS.items():
        files[name] = folder / f"{name}.onnx"
        outside = name == "mxfp8"  # its weights are in a file beside it
        made = copy.deepcopy(layer.model)  # which moves them out of the model that it saves
        onnx.save(made, files[name], save_as_external_data=outside, size_threshold=0)
    files["qdq"] = folder / "qdq.onnx"
    onnx.save(dynamic_quantized(), files["qdq"])
    for name in GRAPHS:
        files[f"{name}_export"] = folder / f"{name}_export.onnx"
        onnx.save(exported(name), files[f"{name}_export"])
    return mxc.compile(files, output=folder / "all.mxc")


@pytest.fixture(scope="module")
def model(compiled: Artifact) -> Any:
    return mxc.load(compiled.path, threads=1)


def _same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", BACKEND)
def test_numbers_are_those_that_onnx_ships(model: Any, name: str) -> None:
    _, values, wanted = given(name)
    for found, one in zip(model.call(name, *values), wanted, strict=True):
        # Bytes have no sign at the boundary of a program.
        _same(found.view(one.dtype) if one.dtype == np.uint8 else found, one)


@pytest.mark.parametrize("name", LAYERS)
def test_a_dequantized_weight(model: Any, name: str) -> None:
    x = np.random.default_rng(2).standard_normal((5, K)).astype(np.float32)
    (found,) = model.call(name, x)
    _same(found, x @ LAYERS[name].wanted.T)


def test_quantized_activations(model: Any) -> None:
    x = np.random.default_rng(2).standard_normal((5, K)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(dynamic_quantized()).run(None, {"x": x})
    _same(model.call("qdq", x)[0], wanted)


@pytest.mark.parametrize("name", GRAPHS)
def test_forms_of_exporters(model: Any, compiled: Artifact, name: str) -> None:
    graph = exported(name)
    kind = helper.tensor_dtype_to_np_dtype(graph.graph.input[0].type.tensor_type.elem_type)
    x = np.random.default_rng(3).standard_normal((5, K)).astype(kind)
    (found,) = model.call(f"{name}_export", x)
    wanted = evaluated(graph, x)
    assert found.dtype == wanted.dtype
    near = 1e-5 if wanted.dtype == np.float32 else 2e-3
    found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=near, atol=near * np.abs(wanted).max())
    report = Report.from_dict(json.loads((compiled.path / REPORT).read_text()))
    (one,) = [each for each in report.matmuls if each.function == f"{name}_export"]
    assert not one.reason
    assert not one.fallback


def test_a_product_in_f16_is_noted(compiled: Artifact) -> None:
    assert any("not rounded to f16" in note for note in compiled.manifest.notes)


def test_scales_that_do_not_fit_are_refused_with_their_node(tmp_path: Path) -> None:
    made = exported("int4")
    (node,) = [each for each in made.graph.node if each.op_type == "DequantizeLinear"]
    (axis,) = [each for each in node.attribute if each.name == "axis"]
    axis.i = 1
    message = _refused(tmp_path, made)
    assert "weight of DequantizeLinear" in message
    assert "wanted [128, 1]" in message


def test_quantized_weights_are_in_kernels_of_ours(compiled: Artifact) -> None:
    report = Report.from_dict(json.loads((compiled.path / REPORT).read_text()))
    ours = {one.function: one.rhs for one in report.matmuls if not one.reason and not one.fallback}
    wanted = {"mxfp4": "mxfp4", "mxfp8": "mxfp8e4m3", "nvfp4": "nvfp4", "int4": "int8"}
    assert wanted.items() <= ours.items()
    assert "zeros" not in ours, "values of zero points are those of no format"
    assert compiled.manifest.weights["elements_f4"].layout == "panel16x4"
    assert compiled.manifest.functions["int8"].input_names == ("x",)


def _refused(tmp_path: Path, made: onnx.ModelProto) -> str:
    file = tmp_path / "x.onnx"
    onnx.save(made, file)
    with pytest.raises(MxcError) as caught:
        mxc.compile(file, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _unary(kind: str, **attributes: Any) -> onnx.ModelProto:
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in ("x", "y")]
    node = helper.make_node(kind, ["x"], ["y"], name="layer.3", **attributes)
    graph = helper.make_graph([node], "g", sides[:1], sides[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_an_operation_without_lowering_is_refused_with_its_node(tmp_path: Path) -> None:
    message = _refused(tmp_path, _unary("Twist", domain="own"))
    assert "layer.3" in message
    assert "Twist has no lowering" in message


@pytest.mark.parametrize(
    ("shape", "given", "said"),
    [
        (None, [4], r"argument x: its rank is not known; give it a shape"),
        ([4], None, r"n1: what Reshape makes, y: its rank is not known"),
    ],
)
def test_an_unknown_rank_is_refused(
    tmp_path: Path, shape: list[int] | None, given: list[int] | None, said: str
) -> None:
    value, kinds = helper.make_tensor_value_info, TensorProto
    inputs = [
        value("x", kinds.FLOAT, shape),
        value("sizes", kinds.INT64, ["any"] if given is None else [1]),
    ]
    node = helper.make_node("Reshape", ["x", "sizes"], ["y"], name="n1")
    graph = helper.make_graph([node], "g", inputs, [value("y", kinds.FLOAT, given)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    assert re.search(said, _refused(tmp_path, made))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert "x.onnx: has no graph" in _refused(tmp_path, onnx.ModelProto())


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"
    file.write_bytes(b"no model")
    with pytest.raises(MxcError, match=r"x\.onnx.*cannot be imported"):
        mxc.compile(file, output=tmp_path / "x.mxc")
