"""Views of torch as reshapes.

A view needs strides as they were when the program was exported, and operations that are decomposed
have others: torch's attention on CPUs gives tensors in which the heads of a token are adjacent.

    view(transpose(attention))    ->    reshape(transpose(attention))
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any


def views_as_reshapes(program: Any) -> Any:
    """An ExportedProgram with its views as reshapes, but those of tensors that are written in
    place: what is written to a view has to be seen in the tensor that it is of."""
    import torch

    aten = torch.ops.aten
    reshapes = {
        aten.view.default: aten.reshape.default,
        aten.view_as.default: aten.reshape_as.default,
    }
    if not any(node.target in reshapes for node in program.graph.nodes):
        return program
    graph = copy.deepcopy(program.graph)
    aliases, written = _aliases(graph)
    for node in graph.nodes:
        if node.target in reshapes and aliases[node] not in written:
            node.target = reshapes[node.target]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _aliases(graph: Any) -> tuple[dict[Any, Any], set[Any]]:
    """For each node the first one that may have its result in the same memory; and those of these
    whose memory is written.

    Of the operands that a result may alias, all are taken as one memory.
    """
    import torch

    memory: dict[Any, Any] = {}
    written = set()

    def owner(node: Any) -> Any:
        while (before := memory.setdefault(node, node)) is not node:
            node = before
        return node

    for node in graph.nodes:
        if node.target is operator.getitem:  # of the results of a split
            memory[owner(node)] = owner(node.args[0])
        schema = getattr(node.target, "_schema", None)
        for number, argument in enumerate(() if schema is None else schema.arguments):
            if argument.alias_info is None:
                continue
            given = node.args[number : number + 1] or [node.kwargs.get(argument.name)]
            for value in given[0] if isinstance(given[0], Sequence) else given:
                if isinstance(value, torch.fx.Node):
                    memory[owner(node)] = owner(value)
                    if argument.alias_info.is_write:
                        written.add(value)
    return {node: owner(node) for node in graph.nodes}, {owner(node) for node in written}
