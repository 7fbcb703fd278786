"""Graphs of ONNX that compute shapes from sizes of the call: the numbers are those of torch, or of
onnx's own evaluator."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from transformers import AutoConfig, AutoModel

import mxc

F32, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
SIZES = {"vocab_size": 50, "num_hidden_layers": 1, "num_attention_heads": 4,
         "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
WIDE = {**SIZES, "hidden_size": 32, "intermediate_size": 48}
#: Masks from ranges, slices of position tables, heads split and merged, images, decoders.
MODELS: dict[str, dict[str, Any]] = {
    "bert": WIDE,
    "llama": {**WIDE, "num_key_value_heads": 2},
    "opt": {**SIZES, "hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 1, "n_head": 4},
    "vit": {**WIDE, "image_size": 32, "patch_size": 8},
    "t5": {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4},
}


class Outputs(torch.nn.Module):
    """A model of transformers, from arrays to its hidden states."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Any) -> Any:
        return self.model(**dict(zip(self.names, given, strict=True)), use_cache=False)[0]


def given(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(1, 50, (batch, length), generator=generator)
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=generator)}
    if name == "t5":
        return {"input_ids": ids, "decoder_input_ids": ids[:, 1:4]}
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name: str, tmp_path: Path) -> None:
    """As torch's exporter by tracing writes them, with a dynamic batch and length."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **MODELS[name])
    config._attn_implementation = "eager"
    first = given(name, 2, 7)
    module = Outputs(AutoModel.from_config(config), [*first]).eval()
    if name == "vit":
        module.forward = lambda images: module.model(pixel_values=images)[0]
    # The decoder's length is another one; all else are sizes of the same tokens.
    axes = {key: {0: "batch", 1: key if "decoder" in key else "length"} for key in first}
    if name == "vit":
        axes = {"pixel_values": {0: "batch"}}
    file = tmp_path / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(first.values()), file, dynamo=False, opset_version=17,
                          input_names=[*first], dynamic_axes=axes)  # fmt: skip
    made = mxc.compile(file, output=tmp_path / "o.mxc", listing=False)
    model = mxc.load(made.path)
    for inputs in (first, given(name, 3, 12)):
        with torch.no_grad():
            wanted = module(*inputs.values()).numpy()
        (found,) = model.call("main", *(each.numpy() for each in inputs.values()))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


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
