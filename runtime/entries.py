"""A function of a loaded module: its types, and its arguments and results on a device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import Function, TensorType
from mxc.errors import ArtifactError
from mxc.runtime import arrays

# One argument or result in IREE's reflection: "sync func @f(%input0: tensor<4xf32>, ...) -> (...)".
_DECLARED = re.compile(r"%(input|output)\d+: (?:tensor<([^>]*)>|(\w+))")


class Entry:
    """A function of the module: its code, its types, and which values are tensors or numbers.

    The manifest gives a rank-0 tensor and a number the same type; only the module's reflection
    distinguishes them.
    """

    def __init__(self, module: Any, name: str, function: Function, place: Path) -> None:
        """Find function `name` in a module of file `place`. Raises ArtifactError where it is not as
        the manifest says."""
        self.function = function
        self.code = module.lookup_function(name)
        if self.code is None:
            raise ArtifactError(
                f"{place}: has no function {name!r} although the manifest lists it; "
                "compile the artifact again"
            )
        declared = self.code.reflection.get("iree.abi.declaration", "")
        found = {"input": function.inputs, "output": function.outputs}
        passed: dict[str, list[bool]] = {"input": [], "output": []}
        said: dict[str, list[str]] = {"input": [], "output": []}
        for side, tensor, number in _DECLARED.findall(declared):
            passed[side].append(bool(tensor))
            said[side].append(tensor or number)
        self.input_is_tensor = passed["input"]
        self.output_is_tensor = passed["output"]
        self._name = name
        for side, types in found.items():
            listed = ", ".join(map(_mlir, types))
            if said[side] != list(map(_mlir, types)):
                raise ArtifactError(
                    f"{place}: {name!r} is declared as {declared!r}, the manifest says "
                    f"{len(types)} {side}s ({listed}); compile the artifact again"
                )

    def argument(self, device: Any, index: int, value: object) -> Any:
        """Return a value as argument `index`: a HalBufferView with a copy of it, or a number.

        Raises RequestError where it does not fit.
        """
        kind = self.function.inputs[index]
        array = arrays.conform(value, kind, self.place(index))
        if not self.input_is_tensor[index]:
            return array.item()
        return arrays.to_device(device, array, kind.dtype)

    def result(self, device: Any, index: int, value: Any) -> arrays.Array:
        """Return result `index` as an array of its own."""
        kind = self.function.outputs[index]
        if not self.output_is_tensor[index]:
            return arrays.conform(value, kind, f"{self._name}, result {index}")
        return arrays.to_host(device, value, kind.dtype)

    def place(self, index: int) -> str:
        """Return the name of an argument for messages."""
        names = self.function.input_names
        named = f" ({names[index]})" if index < len(names) and names[index] else ""
        return f"{self._name}, argument {index}{named}"


def _mlir(kind: TensorType) -> str:
    """Return a type as IREE's reflection spells it: "?x4xf32" for a tensor, "i32" for a number."""
    kind = kind.stored
    return "x".join(["?" if extent == -1 else str(extent) for extent in kind.shape] + [kind.dtype])
