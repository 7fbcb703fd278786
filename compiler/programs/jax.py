"""Programs from JAX: `jax.export.Exported`, or files of StableHLO. Needs no JAX itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxc.errors import CheckpointError

#: Files of StableHLO, as `Exported.mlir_module()` gives it.
SUFFIX = ".stablehlo"
MAIN = "main"


def is_exported(source: object) -> bool:
    """Whether an object is a `jax.export.Exported`, without importing JAX."""
    kind = type(source)
    return kind.__name__ == "Exported" and kind.__module__.startswith("jax.")


def is_stablehlo(path: Path) -> bool:
    """Whether a file holds StableHLO, by its name, or MLIR text that has its operations."""
    if path.suffix == SUFFIX:
        return path.is_file()
    return path.suffix == ".mlir" and path.is_file() and b"stablehlo." in path.read_bytes()


def functions_of(given: Mapping[str, Any]) -> dict[str, bytes]:
    """The StableHLO of each function, by name.

    Raises CheckpointError for a program for several devices, or one with effects.
    """
    return {name: _code(name, exported) for name, exported in given.items()}


def _code(name: str, exported: Any) -> bytes:
    if exported.nr_devices != 1:
        raise CheckpointError(
            f"{name}: exported for {exported.nr_devices} devices; export it for one, without a mesh"
        )
    if exported.ordered_effects or exported.unordered_effects:
        raise CheckpointError(
            f"{name}: has effects ({exported.ordered_effects or exported.unordered_effects}); "
            "a compiled program computes its results alone: leave out callbacks and printing"
        )
    # The text, not the portable bytecode, whose operations IREE shows to nobody.
    return str(exported.mlir_module()).encode()
