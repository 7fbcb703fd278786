"""Graphs of ONNX that compute shapes from sizes of the call: the numbers are those of onnx."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mxc

F32, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


class Graph:
    """A graph of x [batch, rows, 8] and of nodes that are called one by one."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def __call__(self, operator: str, *read: Any, **attributes: Any) -> str:
        names = [each if isinstance(each, str) else self.constant(each) for each in read]
        made = f"{operator}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [made], made, **attributes))
        return made

    def constant(self, numbers: Any) -> str:
        name = f"constant.{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def size(self, value: str, axis: int) -> str:
        """A list of one number."""
        return self("Gather", self("Shape", value), [axis])

    def model(self, result: str, rank: int) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", F32, ["batch", "rows", 8])
        y = helper.make_tensor_value_info("y", F32, [None] * rank)
        self.nodes.append(helper.make_node("Identity", [result], ["y"], "y"))
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def heads(g: Graph) -> tuple[str, int]:
    shape = g("Concat", g.size("x", 0), g.size("x", 1), [-1], [4], axis=0)
    turned = g("Transpose", g("Reshape", "x", shape), perm=[0, 2, 1, 3])
    merged = g("Concat", g("Mul", g.size("x", 0), [2]), g.size("x", 1), [4], axis=0)
    return g("Reshape", turned, merged), 3


def expanded(g: Graph) -> tuple[str, int]:
    """The idiom in which an exporter writes -1 for a size that stays."""
    wanted = g("Concat", g.size("x", 1), [-1], [-1], [-1], axis=0)
    ones = g("ConstantOfShape", g("Shape", wanted), value=helper.make_tensor("v", I64, [1], [1]))
    kept = g("Equal", wanted, g("Mul", ones, [-1]))
    return g("Expand", "x", g("Where", kept, ones, wanted)), 4


def masked(g: Graph) -> tuple[str, int]:
    """Places up to a size, of a range and of a table."""
    rows = g("Squeeze", g.size("x", 1), [0])
    places = g("Cast", g("Range", g.constant(0), rows, g.constant(1)), to=F32)
    table = g("Cast", g("Slice", [[*range(40)]], [0], g.size("x", 1), [1], [1]), to=F32)
    both = g("Add", g("Unsqueeze", places, [0]), table)
    whole = g("Concat", g.size("x", 0), g.size("x", 1), axis=0)
    column = g("Concat", g.size("x", 0), g.size(both, 1), [1], axis=0)
    return g("Add", "x", g("Reshape", g("Expand", both, whole), column)), 3


def unknown(g: Graph) -> tuple[str, int]:
    """-1 for a size beside others that the names of sizes do not give: rows without the first."""
    rest = g("Slice", "x", [1], [1 << 40], [1])
    shape = g("Concat", g.size(rest, 1), g.size("x", 0), [-1], axis=0)
    turned = g("Transpose", rest, perm=[1, 0, 2])
    return g("Reshape", g("Add", turned, turned), shape), 3


@pytest.mark.parametrize("build", [heads, expanded, masked, unknown])
def test_shapes_of_graphs(build: Callable[[Graph], tuple[str, int]], tmp_path: Path) -> None:
    graph = Graph()
    model = graph.model(*build(graph))
    onnx.save(model, tmp_path / "x.onnx")
    made = mxc.compile(tmp_path / "x.onnx", output=tmp_path / "o.mxc", listing=False)
    loaded = mxc.load(made.path)
    for batch, rows in ((2, 5), (1, 3), (4, 4)):
        x = np.random.default_rng(rows).standard_normal((batch, rows, 8)).astype(np.float32)
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        (found,) = loaded.call("main", x)
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("operator", ["InstanceNormalization", "LpNormalization"])
def test_axes_of_reductions_of_each_version(operator: str, opset: int, tmp_path: Path) -> None:
    read = ["x"] if operator == "LpNormalization" else ["x", "scale", "bias"]
    kept = [numpy_helper.from_array(np.arange(1, 4, dtype=np.float32), name) for name in read[1:]]
    x, y = (helper.make_tensor_value_info(name, F32, ["batch", 3, "rows"]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, read, ["y"], "n")], "g", [x], [y], kept)
    ids = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=ids, ir_version=8)
    onnx.save(model, tmp_path / "x.onnx")
    made = mxc.compile(tmp_path / "x.onnx", output=tmp_path / "o.mxc", listing=False)
    data = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)
    evaluated: Any = ReferenceEvaluator(model).run(None, {"x": data})
    (found,) = mxc.load(made.path).call("main", data)
    np.testing.assert_allclose(found, evaluated[0], rtol=1e-4, atol=1e-5)
