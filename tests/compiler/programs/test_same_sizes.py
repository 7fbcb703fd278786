"""Calls in which sizes of one name differ."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import mxc
from mxc.compiler.artifact import Artifact

ROWS, OTHERS = np.ones((3, 5), np.float32), np.ones((4, 5), np.float32)
KIND = onnx.TensorProto.FLOAT


def of_torch(folder: Path) -> Artifact:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x.sum(1), y + 1, x @ y.T

    rows, columns = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("columns")
    same = {0: rows, 1: columns}
    given = torch.ones(3, 5), torch.ones(3, 5)
    program = torch.export.export(Rows(), given, dynamic_shapes=(same, same))
    return mxc.compile(program, output=folder / "torch.mxc", listing=False)


def of_onnx(folder: Path) -> Artifact:
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [make("ReduceSum", ["x"], ["a"]), make("Relu", ["y"], ["b"])]
    arguments = [info(name, KIND, ["rows", "columns"]) for name in "xy"]
    results = [info("a", KIND, [1, 1]), info("b", KIND, ["rows", "columns"])]
    graph = onnx.helper.make_graph(nodes, "g", arguments, results)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), folder / "x.onnx")
    return mxc.compile(folder / "x.onnx", output=folder / "onnx.mxc", listing=False)


@pytest.mark.parametrize("source", [of_torch, of_onnx])
def test_sizes_of_one_name_are_one_size(source: Any, tmp_path: Path) -> None:
    model = mxc.load(source(tmp_path).path)
    model.call("main", ROWS, ROWS)
    with pytest.raises(RuntimeError, match=r"size 0 of y and size 0 of x are both \w+"):
        model.call("main", ROWS, OTHERS)
    with pytest.raises(RuntimeError, match=r"size 1 of y and size 1 of x are both \w+"):
        model.call("main", ROWS, np.ascontiguousarray(ROWS[:, 1:]))
