"""Buffers that a program of torch changes become arguments, and what they become, results.

    signature: buffer cache -> b_cache; output: mutation of cache <- index_put, user output
    ->
    signature: user input b_cache; output: user output index_put, user output

A result takes the memory of its argument. The state of a program is so in the hands of its caller,
and calls of one artifact do not see each other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxc.errors import CompileError


@dataclass(frozen=True)
class ChangedBuffers:
    """The arguments that were buffers, by their names in the graph: the name of each buffer, and
    the number of its result."""

    buffers: Mapping[str, str]
    results: Mapping[str, int]

    def inputs(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The names of all arguments of a graph for callers: buffers have their own."""
        return tuple(self.buffers.get(each, each) for each in arguments)

    def outputs(self, count: int) -> tuple[str, ...]:
        """The names of so many results: buffers have their own, others none."""
        names = {self.results[each]: name for each, name in self.buffers.items()}
        return tuple(names.get(number, "") for number in range(count))

    def in_place(self, arguments: Sequence[str]) -> dict[int, int]:
        """The numbers of arguments of a graph, each with that of the result in its memory."""
        return {arguments.index(each): result for each, result in self.results.items()}


def states_as_arguments(program: Any) -> ChangedBuffers:
    """Change the signature of an ExportedProgram in place.

    Raises CompileError for a buffer that begins with other numbers than zeros, which an artifact
    does not hold.
    """
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    changed = {
        spec.target: number
        for number, spec in enumerate(signature.output_specs)
        if spec.kind == OutputKind.BUFFER_MUTATION
    }
    buffers, results = dict[str, str](), dict[str, int]()
    for spec in signature.input_specs:
        if spec.kind != InputKind.BUFFER or spec.target not in changed:
            continue
        values = program.state_dict if spec.persistent else program.constants
        if values[spec.target].count_nonzero():
            raise CompileError(
                f"buffer {spec.target}, which the program changes, does not begin with zeros; give "
                "it as an argument and return it",
                phase="import",
            )
        buffers[spec.arg.name], results[spec.arg.name] = spec.target, changed[spec.target]
        spec.kind, spec.target, spec.persistent = InputKind.USER_INPUT, None, None
    for number in changed.values():
        spec = signature.output_specs[number]
        spec.kind, spec.target = OutputKind.USER_OUTPUT, None
    return ChangedBuffers(buffers, results)
