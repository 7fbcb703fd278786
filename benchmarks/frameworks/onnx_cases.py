"""The cases of the package onnx: a model, inputs, and the reference implementation's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from frameworks.case import Arrays, Case, Program

#: Integer types of 4 bits; artifacts take and return them as bytes.
_NIBBLES = (ml_dtypes.int4, ml_dtypes.uint4)


def cases() -> Iterator[Case]:
    """Yield all cases of operators (kind "node"), in the order of the package."""
    for case in load_model_tests(kind="node"):
        yield Case(case.name, partial(_load, case))


def _load(case: Any) -> Sequence[Program]:
    folder = Path(case.model_dir)
    graph = onnx.load(folder / "model.onnx").graph
    for each in (*graph.input, *graph.output):
        kind = each.type.tensor_type if each.type.HasField("tensor_type") else None
        if kind is None or kind.elem_type == onnx.TensorProto.STRING:
            return []
    calls = [
        (_arrays(data, "input"), _arrays(data, "output"))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return [Program(case.name, folder / "model.onnx", calls, case.rtol, case.atol)]


def _arrays(folder: Path, kind: str) -> Arrays:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
    protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    arrays = [onnx.numpy_helper.to_array(proto) for proto in protos]
    return [each.astype(np.int8) if each.dtype in _NIBBLES else each for each in arrays]
