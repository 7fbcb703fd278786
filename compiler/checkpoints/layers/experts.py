"""Experts that transformers has in one tensor a projection, and that it multiplies from the right.

    X.experts.gate_up_proj [E, in, 2 * out]     y = x @ gate_up_proj[e] + gate_up_proj_bias[e]

What is in a file as the module has it, plain or from a library that quantizes it where it is, comes
out as weights do, [E, out, in]. Shapes do not tell: projections of published models are square.
Source: transformers 5.23 models/gpt_oss/modeling_gpt_oss.py (GptOssExperts),
models/llama4/modeling_llama4.py (Llama4TextExperts).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mxc.compiler.checkpoints.canonical.stored import Stored, count_rows
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.canonical.transposed import Transposed
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.errors import CheckpointError

#: `model_type` of those that have experts so, and how the tensors are named.
_TURNED = ("gpt_oss", "llama4", "llama4_text")
STACKED = re.compile(r"(.*\.)?experts\.(gate_up|gate|up|down)_proj")


def turned(name: str, config: Mapping[str, Any]) -> bool:
    """Whether transformers' module has the tensor `name` as [E, in, out]."""
    return config.get("model_type") in _TURNED and STACKED.fullmatch(name) is not None


def as_weight(tensor: CanonicalTensor, config: Mapping[str, Any]) -> CanonicalTensor:
    """The tensor; where the module has it as [E, in, out], as [E, out, in].

    Raises CheckpointError for such experts in other than three dimensions, and in blocks: they lie
    along the outputs, where no product can use them.
    """
    if not turned(tensor.name, config) or isinstance(tensor.elements, Transposed):
        return tensor
    if tensor.scales is not None or tensor.tensor_scale is not None:
        raise CheckpointError(
            f"{tensor.place} is {tensor.format} {list(tensor.shape)} as the module has it, "
            "[experts, in, out]: its blocks lie along the outputs, and products need them along "
            "the inputs; quantize each expert as a linear layer of its own, or with mxc quantize"
        )
    if len(tensor.shape) != 3 or 0 in tensor.shape:
        raise CheckpointError(
            f"{tensor.place} is {tensor.elements.record.describe()}, wanted what all experts of a "
            "layer have, [experts, in, out], none of them 0; fetch the file again"
        )
    experts, depth, outputs = tensor.shape
    shape = (experts, outputs, depth)
    elements = transposed_part(tensor.elements.record, shape, tensor.dtype)
    return replace(tensor, shape=shape, elements=elements)


def transposed_part(record: TensorRecord, shape: tuple[int, ...], dtype: str) -> Transposed:
    """A part [E, out, ..] of which a file has [E, .., out]."""
    experts, outputs, *row = shape
    height = math.prod(row)
    part = Stored(
        record=record, shape=(experts, height, outputs), dtype=dtype, rows=experts * height
    )
    rows = count_rows((experts, outputs, 1))
    return Transposed(part=part, shape=shape, dtype=dtype, rows=rows, outputs=outputs)
