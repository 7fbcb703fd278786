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
    `element` is the MLIR type of what they mean. With `experts` the first dimension counts groups.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    element: str
    experts: bool = False

    @property
    def matrices(self) -> tuple[int, int]:
        """Matrices and rows of each, as they are packed."""
        lead, rest = (self.shape[0], self.shape[1:]) if self.experts else (1, self.shape)
        return lead, rest[0] if rest else 1

    def read(self) -> NDArray[Any]:
        """The array, mapped from the file."""
        return np.memmap(self.file, DTYPES[self.dtype], "r", shape=self.shape)


@dataclass(frozen=True)
class ImportedProgram:
    """MLIR bytecode of a program, and the parameters that it names."""

    program: bytes
    parameters: Mapping[str, ConstantParameter]

    def pack_items(self, panels: Mapping[str, str]) -> tuple[PackItem, ...]:
        """One item for each parameter; `panels`: the layout of those that kernels read so."""
        return tuple(
            PackItem(key=name, source=each.read(), panels=panels.get(name), experts=each.experts)
            for name, each in self.parameters.items()
        )

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
