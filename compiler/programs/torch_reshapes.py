"""Reshapes of torch whose sizes come with the call, as merges and splits of dimensions.

The importer takes wrong dimensions together where several are dynamic: a view of [t, b, 4, 16] as
[t b, 64] has t rows, as in a `TransformerEncoderLayer`. It lowers right what is only merged, or
only split.

    view [t, b, 4, 16] as [t b, 64]:  flatten of the last two, flatten of the first two
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

from mxc.compiler.programs.reshape_groups import Size, same_elements

#: Operations that give a tensor other sizes.
_RESHAPES = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")


def split_reshapes(program: Any) -> None:
    """Rewrite each such reshape of an ExportedProgram with dynamic sizes, in place."""
    module, renamed = program.graph_module, {}
    for node in list(module.graph.nodes):
        if str(node.target) not in _RESHAPES:
            continue
        source = node.args[0]
        before, after = (list(each.meta["val"].shape) for each in (source, node))
        if all(isinstance(size, int) for size in (*before, *after)):
            continue
        if not before or not after:
            continue
        with module.graph.inserting_before(node):
            found = _merged_and_split(module.graph, node, before, after)
        if found is source:
            continue
        node.replace_all_uses_with(found)
        module.graph.erase_node(node)
        renamed[node.name] = found.name
    for spec in program.graph_signature.output_specs:
        spec.arg.name = renamed.get(spec.arg.name, spec.arg.name)
    module.recompile()


def _merged_and_split(graph: Any, node: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """Nodes that flatten what is merged, then unflatten what is split: the last of them."""
    import torch

    aten = torch.ops.aten
    groups = same_elements([_size(each) for each in before], [_size(each) for each in after])
    found, wanted = node.args[0], list(node.args[1])
    # From the last one on, so that the numbers of those before it stay what they are.
    for left, _ in reversed(groups):
        if len(left) > 1:
            found = _call(graph, aten.flatten.using_ints, found, left[0], left[-1])
    for axis, (_, right) in reversed(list(enumerate(groups))):
        if len(right) > 1:
            sizes = [wanted[place] for place in right]
            known = prod(size for size in sizes if isinstance(size, int) and size > 0)
            if -1 in sizes and all(isinstance(size, int) for size in sizes):
                sizes = [
                    size if size > 0 else _quotient(graph, found, axis, known) for size in sizes
                ]
            found = _call(graph, aten.unflatten.int, found, axis, sizes)
    return found


def _quotient(graph: Any, tensor: Any, axis: int, known: int) -> Any:
    """The size that is left of a dimension for the one that a reshape does not say."""
    import torch

    whole = tensor.meta["val"].shape[axis]
    if isinstance(whole, int):
        return whole // known
    size = _call(graph, torch.ops.aten.sym_size.int, tensor, axis)
    return _call(graph, operator.floordiv, size, known)


def _call(graph: Any, function: Any, *arguments: Any) -> Any:
    """A node, and what its result is."""
    node = graph.call_function(function, arguments)

    def value(argument: Any) -> Any:
        if isinstance(argument, list):
            return [value(each) for each in argument]
        return argument.meta["val"] if hasattr(argument, "meta") else argument

    node.meta["val"] = function(*(value(each) for each in arguments))
    return node


def _size(size: Any) -> Size:
    """A size of torch as a product: an integer, or an expression of symbols."""
    if isinstance(size, int):
        return Size(size)
    factor, factors = size.node.expr.as_coeff_mul()
    names: list[str] = []
    for each in factors:
        base, power = each.as_base_exp()
        whole = power.is_Integer and power > 0
        names += [str(base)] * int(power) if whole else [str(each)]
    if not (factor.is_Integer and factor > 0):
        return Size(names=(str(size.node.expr),))
    product = Size(int(factor))
    for name in names:
        product *= Size(names=(name,))
    return product
