"""`torch.compile(module, backend="mxc")`: inference on this CPU with packed weights.

Each graph of torch.compile is compiled into one artifact for each set of input shapes; sizes that
torch.compile marks as dynamic are passed with the call. Values of parameters and buffers are those
of the first call: later changes are ignored.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mxc.compiler.compilation import compile
from mxc.errors import RequestError
from mxc.runtime import load

#: torch dtypes without a numpy dtype -> (integer dtype of the same size, dtype of ml_dtypes).
_BITS: dict[str, tuple[str, Any]] = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu),
}
#: Modules in torch.compile's name of a weight: L['self']._modules['lin']._parameters['weight'].
_OWN = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]")


def compile_graph(graph: Any, inputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """Return a function that computes a torch.fx.GraphModule; `inputs` are those of its first call.

    Raises RequestError if gradients are requested. The function raises MxcError for a graph that
    cannot be compiled, and for one that changes buffers.
    """
    import torch

    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        raise RequestError('backend "mxc" has no gradients; call the module under torch.no_grad()')
    weights = dict(_weights(graph))
    sizes = _Sizes.of(graph)
    programs: list[_Program] = []

    def run(*given: Any) -> list[Any]:
        program = next((each for each in programs if each.takes(given)), None)
        if program is None:
            program = _Program(graph, given, weights, sizes)
            programs.append(program)
        return program(given)

    undisturbed: Callable[..., list[Any]] = torch.compiler.disable(run)
    return undisturbed


def _weights(graph: Any) -> list[tuple[int, str]]:
    """Return (index of the input, name in the state_dict) for inputs that are parameters or
    buffers."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    found = []
    for number, node in enumerate(placeholders):
        source = str(getattr(getattr(node, "_dynamo_source", None), "name", ""))
        if "_parameters[" in source or "_buffers[" in source:
            found.append((number, ".".join(_OWN.findall(source))))
    return found


@dataclass(frozen=True)
class _Sizes:
    """Dynamic sizes, by the indices of inputs.

    `dims`: the dynamic dimensions of tensors. `numbers`: inputs that are such a size themselves,
    with the tensor and dimension they come from.
    """

    dims: dict[int, tuple[int, ...]]
    numbers: dict[int, tuple[int, int]]

    @staticmethod
    def of(graph: Any) -> _Sizes:
        """Return the dynamic sizes that torch.compile has recorded for the inputs of a graph."""
        import torch

        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        examples = [node.meta.get("example_value") for node in nodes]
        dims: dict[int, tuple[int, ...]] = {}
        places: dict[str, tuple[int, int]] = {}
        for number, each in enumerate(examples):
            shape = each.shape if isinstance(each, torch.Tensor) else ()
            dims[number] = tuple(i for i, n in enumerate(shape) if isinstance(n, torch.SymInt))
            for dim in dims[number]:
                places.setdefault(str(shape[dim]), (number, dim))
        numbers = {
            number: places[str(each)]
            for number, each in enumerate(examples)
            if isinstance(each, torch.SymInt) and str(each) in places
        }
        return _Sizes(dims, numbers)


class _Program:
    """A graph compiled for the shapes of one call, except for dynamic sizes."""

    def __init__(
        self, graph: Any, given: Sequence[Any], weights: dict[int, str], sizes: _Sizes
    ) -> None:
        import torch

        self._inputs = [
            number
            for number, each in enumerate(given)
            if isinstance(each, torch.Tensor) and number not in weights
        ]
        # Kept with the program, because the artifact is in it.
        self._folder = tempfile.TemporaryDirectory(prefix="mxc-torch-")
        self._numbers = {
            number: each
            for number, each in enumerate(given)
            if not isinstance(each, torch.Tensor) and number not in sizes.numbers
        }
        module = _bound(graph, given, weights, self._inputs, sizes)
        tensors = tuple(given[i] for i in self._inputs)
        # torch.export decides which of these dimensions are static after all.
        dynamic = [
            dict.fromkeys(sizes.dims.get(i, ()), torch.export.Dim.AUTO) for i in self._inputs
        ]
        with torch.no_grad():
            program = torch.export.export(module, tensors, dynamic_shapes=(tuple(dynamic),))
        self._types = [
            (tuple(n if isinstance(n, int) else None for n in value.shape), value.dtype)
            for value in _arguments(program)
        ]
        artifact = compile(program, output=Path(self._folder.name) / "graph.mxc", listing=False)
        self._model = load(artifact.path)
        function = self._model.functions["main"]
        if function.in_place:
            names = ", ".join(function.input_names[number] for number, _ in function.in_place)
            raise RequestError(
                f'the module changes its buffers {names}, which backend "mxc" does not write back; '
                "export it with torch.export and compile the program"
            )

    def takes(self, given: Sequence[Any]) -> bool:
        """Return whether a call has the shapes, dtypes and numbers that the program was compiled
        for."""
        return all(given[i] == each for i, each in self._numbers.items()) and all(
            value.dtype == dtype and _fits(value.shape, shape)
            for value, (shape, dtype) in zip(
                (given[i] for i in self._inputs), self._types, strict=True
            )
        )

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        return list(
            map(_tensor, self._model.call("main", *(_array(given[i]) for i in self._inputs)))
        )


def _arguments(program: Any) -> list[Any]:
    """Return the example value of each tensor argument of an exported program."""
    names = program.graph_signature.user_inputs
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [nodes[name].meta["val"] for name in names]


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == own for own, size in zip(shape, wanted, strict=True)
    )


def _bound(
    graph: Any,
    given: Sequence[Any],
    weights: dict[int, str],
    inputs: Sequence[int],
    sizes: _Sizes,
) -> Any:
    """Return a module of `inputs` only: weights are its buffers, other numbers are constants."""
    import torch

    def forward(self: Any, *values: Any) -> Any:
        whole = list(given)
        for number, value in zip(inputs, values, strict=True):
            whole[number] = value
        for number, (tensor, dim) in sizes.numbers.items():
            whole[number] = whole[tensor].shape[dim]
        for number, name in weights.items():
            whole[number] = self.get_buffer(name)
        return tuple(graph(*whole))

    bound: Any = type("Bound", (torch.nn.Module,), {"forward": forward})()
    for number, name in weights.items():
        *path, own = name.split(".")
        owner: Any = bound
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]
        if own not in owner._buffers:
            owner.register_buffer(own, given[number].detach())
    return bound


def _array(tensor: Any) -> Any:
    """Return a tensor as an array with a dtype of numpy or ml_dtypes."""
    import torch

    tensor = tensor.detach().contiguous()
    bits = _BITS.get(str(tensor.dtype).rpartition(".")[2])
    if bits is None:
        return tensor.numpy()
    return tensor.view(getattr(torch, bits[0])).numpy().view(bits[1])


def _tensor(array: Any) -> Any:
    """Return an array as a tensor with a dtype of torch."""
    import torch

    array = np.asarray(array)
    for name, (bits, kind) in _BITS.items():
        if array.dtype == kind:
            return torch.from_numpy(array.view(bits)).view(getattr(torch, name))
    return torch.from_numpy(array)
