"""What IREE's importer does not read of a graph of torch, written as it does.

sym_max, sym_min, sym_sum of sizes     prim.max and prim.min of two, and sums of two
padding [0] of a 2-d convolution       [0, 0]: of a shorter list the importer reads past the end
buffers of truth values                bytes, which are not 0 where the value is true
pairs of 4-bit floats                  bytes
topk in any order                      in the order of the values
_assert_tensor_metadata                nothing: types are fixed when a program is exported
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

#: Where the lists of a convolution are among its arguments: strides, padding, dilation, and what is
#: added to the output of a transposed one.
_LISTS = (3, 4, 5, 7)
#: Arguments of `topk`, of which the last says whether values are sorted.
_TOP_K = ("x", "k", "dim", "largest", "sorted")
#: What stops a program of torch: arguments are a condition, and mostly a message.
_ASSERTIONS = [f"aten.{name}" for name in ("_assert_scalar.default", "_assert_async.default",
               "_assert_async.msg")]  # fmt: skip


def rewrite_graph(program: Any) -> None:
    """Rewrite the graph of an ExportedProgram in place."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        for rewrite in (_sum_of_sizes, _convolution, _top_k, _view_of_bytes, _assertion):
            if rewrite(graph, node):
                break
    _truths_as_bytes(program)
    program.graph_module.recompile()


def drop_assertions(program: Any) -> list[str]:
    """Erase what asserts something of data or of sizes, and what is computed for that alone, in
    place. Returns the messages."""
    graph = program.graph_module.graph
    said, asserted = [], set()
    for node in reversed(graph.nodes):
        is_assertion = str(node.target) in _ASSERTIONS
        if is_assertion:
            said.append(str(node.args[-1]))
        if is_assertion or (node in asserted and node.op == "call_function" and not node.users):
            asserted.update(node.all_input_nodes)
            graph.erase_node(node)
    program.graph_module.recompile()
    return said[::-1]


def name_sizes(program: Any) -> None:
    """Give maxima and minima of sizes the names that the importer knows, in place. A program with
    these is not to be saved: torch loads them as the numbers of one call."""
    import torch

    names = {torch.sym_max: torch.ops.prim.max.int, torch.sym_min: torch.ops.prim.min.int}
    for node in program.graph.nodes:
        if node.op == "call_function":
            node.target = names.get(node.target, node.target)
    program.graph_module.recompile()


def _sum_of_sizes(graph: Any, node: Any) -> bool:
    import torch

    if node.target is not torch.sym_sum:
        return False
    (terms,) = node.args
    with graph.inserting_before(node):
        found = reduce(lambda left, right: _added(graph, left, right), terms)
    node.replace_all_uses_with(found)
    graph.erase_node(node)
    return True


def _added(graph: Any, left: Any, right: Any) -> Any:
    node = graph.call_function(operator.add, (left, right))
    node.meta["val"] = operator.add(
        *(each.meta["val"] if hasattr(each, "meta") else each for each in (left, right))
    )
    return node


def _convolution(_: Any, node: Any) -> bool:
    if str(node.target) != "aten.convolution.default":
        return False
    rank = node.args[0].meta["val"].dim() - 2
    for at in _LISTS:
        if len(node.args[at]) == 1:
            node.update_arg(at, [*node.args[at]] * rank)
    return True


def _top_k(graph: Any, node: Any) -> bool:
    import torch

    if node.target is not torch.ops.aten.topk.default or len(node.args) < len(_TOP_K):
        return False
    node.args = (*node.args[: len(_TOP_K) - 1], True)
    return True


def _view_of_bytes(graph: Any, node: Any) -> bool:
    import torch

    value = node.meta.get("val")
    if getattr(value, "dtype", None) == torch.float4_e2m1fn_x2:
        node.meta["val"] = value.view(torch.uint8)
        node.meta.pop("tensor_meta", None)
    if str(node.target) != "aten.view.dtype":
        return False
    source = node.args[0]
    if source.meta["val"].dtype == node.meta["val"].dtype:
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    return True


def _assertion(graph: Any, node: Any) -> bool:
    found = str(node.target) == "aten._assert_tensor_metadata.default"
    if found:
        graph.erase_node(node)
    return bool(found)


def _truths_as_bytes(program: Any) -> None:
    """Buffers and constants of truth values: the importer has no parameters of one bit."""
    import torch

    graph = program.graph_module.graph
    held = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    for node in list(graph.nodes):
        name = held.get(node.name) if node.op == "placeholder" else None
        value = node.meta.get("val")
        if name is None or getattr(value, "dtype", None) != torch.bool:
            continue
        for tensors in (program.state_dict, program.constants):
            if name in tensors:
                tensors[name] = tensors[name].to(torch.uint8)
        node.meta["val"] = value.to(torch.uint8)
        node.meta.pop("tensor_meta", None)
        with graph.inserting_after(node):
            truth = graph.call_function(torch.ops.aten.ne.Scalar, (node, 0))
        truth.meta["val"] = value
        node.replace_all_uses_with(truth, delete_user_cb=lambda user, own=truth: user is not own)
