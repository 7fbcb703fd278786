"""A program that was imported: one module, and its constants beside it as named parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import WeightRecord
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.quantized import Loss

#: Bits of an element of which two are in a byte.
NIBBLE = 4


@dataclass(frozen=True, kw_only=True)
class ConstantParameter:
    """A parameter whose bytes, row major, are the file `file`.

    `dtype` is a key of DTYPES and `shape` counts its elements: 4-bit floats are U8, two in a byte.
    `element` is the MLIR type of what they mean.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    element: str

    def read(self) -> NDArray[Any]:
        """The array, mapped from the file."""
        if 0 in self.shape:
            return np.zeros(self.shape, DTYPES[self.dtype])
        return np.memmap(self.file, DTYPES[self.dtype], "r", shape=self.shape)


@dataclass(frozen=True)
class ImportedProgram:
    """MLIR bytecode of a program, and the parameters that it names."""

    program: bytes
    parameters: Mapping[str, ConstantParameter]

    def pack_items(
        self, panels: Mapping[str, str], matrices: Mapping[str, tuple[int, int]]
    ) -> tuple[PackItem, ...]:
        """One item for each parameter. `panels`, `matrices`: see Compiled."""
        items = []
        for name, each in self.parameters.items():
            array = each.read()
            if name in panels:
                array = array.reshape(*matrices[name], -1)
            items.append(
                PackItem(key=name, source=array, panels=panels.get(name), experts=name in panels)
            )
        return tuple(items)

    def weights(
        self, panels: Mapping[str, str], losses: Mapping[str, Loss] | None = None
    ) -> dict[str, WeightRecord]:
        """What the manifest says of every parameter. Nothing is quantized, so there is no loss."""
        assert not losses
        return {
            name: WeightRecord(
                source="a constant of the program",
                shape=_elements(each),
                format=each.element,
                nibble_order="low-even" if each.element == "f4E2M1FN" else None,
                layout=panels.get(name, "identity"),
            )
            for name, each in self.parameters.items()
        }


def _elements(constant: ConstantParameter) -> tuple[int, ...]:
    *rows, last = constant.shape or (1,)
    return (*rows, 2 * last) if constant.element == "f4E2M1FN" else constant.shape
