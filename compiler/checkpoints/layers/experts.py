"""Experts that transformers' module has transposed, in one tensor per projection.

  X.experts.gate_up_proj [E, in, 2 * out]     y = x @ gate_up_proj[e] + gate_up_proj_bias[e]

Files have such tensors as the module does, either plain or quantized in place by a library. They
are returned as other weights are, [E, out, in]. The shapes do not tell which is the case: published
models have square projections. Source: transformers 5.23 models/gpt_oss/modeling_gpt_oss.py
(GptOssExperts), models/llama4/modeling_llama4.py (Llama4TextExperts).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mxc.compiler.checkpoints.canonical.stored import FileTensor, count_rows
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.canonical.transposed import Transposed
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.errors import CheckpointError

#: `model_type` of models with such experts, and the names of the tensors.
_TURNED = ("gpt_oss", "llama4", "llama4_text")
STACKED = re.compile(r"(.*\.)?experts\.(gate_up|gate|up|down)_proj")


def is_transposed(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether transformers' module has the tensor `name` as [E, in, out]."""
    return config.get("model_type") in _TURNED and STACKED.fullmatch(name) is not None


def as_weight(tensor: CanonicalTensor, config: Mapping[str, Any]) -> CanonicalTensor:
    """Return the tensor; if the module has it as [E, in, out], transposed to [E, out, in].

    Raises CheckpointError for such experts with a rank other than three, and in blocks: blocks
    along the outputs cannot be used by a product over the inputs.
    """
    if not is_transposed(tensor.name, config) or isinstance(tensor.elements, Transposed):
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
    """Return a part [E, out, ..] from a file tensor [E, .., out]."""
    experts, outputs, *row = shape
    height = math.prod(row)
    part = FileTensor(
        record=record, shape=(experts, height, outputs), dtype=dtype, rows=experts * height
    )
    rows = count_rows((experts, outputs, 1))
    return Transposed(part=part, shape=shape, dtype=dtype, rows=rows, outputs=outputs)
