"""A GGUF file as the source of `mxc quantize`: values as a checkpoint, metadata as config.json.

Tensors have transformers' names and order of rows, with one tensor per expert. Q8_0 is dequantized
to float32. Rows are decoded when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mxc.compiler.checkpoints.canonical.numbers import MatrixValues
from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.dialects.gguf import open_gguf
from mxc.compiler.checkpoints.files.tensors import (
    DTYPES,
    Checkpoint,
    TensorRecord,
    read_bytes,
)
from mxc.compiler.models.configs.gguf import published_config
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS


@dataclass(frozen=True)
class GgufSource:
    """A checkpoint whose bytes come from `reads`, a reader for each tensor by name.

    The records of the checkpoint describe the decoded tensors. `texts` are the tokenizer and the
    chat template, by file name.
    """

    checkpoint: Checkpoint
    reads: Mapping[str, Decoded]
    texts: Mapping[str, bytes]


def open_source(path: Path) -> GgufSource:
    """Open a .gguf file.

    Raises CheckpointError as open_gguf and published_config, for a file that is already in a block
    format, and for gpt-oss, whose experts have an order of their own in every dialect.
    """
    source = open_gguf(path)
    config, tensors = published_config(source.config, source.tensors, str(path))
    if config["model_type"] == "gpt_oss":
        raise CheckpointError(
            f"{path}: gpt-oss is not quantized from GGUF; write it with `mxc convert --to gpt-oss` "
            "first, and quantize that"
        )
    for tensor in tensors.values():
        if tensor.format in FORMATS:
            raise CheckpointError(
                f"{tensor.place} is {tensor.format}: the file is quantized already; quantize the "
                "model that it was made from, or use `mxc convert` for another dialect"
            )
    records = {name: _record(tensor, path) for name, tensor in tensors.items()}
    checkpoint = Checkpoint(folder=path, config=config, tensors=records, files=(path,))
    reads = {name: _reader(tensor) for name, tensor in tensors.items()}
    return GgufSource(checkpoint, reads, text_files(source.config, str(path)))


def _record(tensor: CanonicalTensor, path: Path) -> TensorRecord:
    dtype = tensor.dtype if tensor.is_plain else "F32"
    size = prod(tensor.shape) * DTYPES[dtype].itemsize
    return TensorRecord(
        name=tensor.name, dtype=dtype, shape=tensor.shape, file=path, offset=0, bytes=size
    )


def _reader(tensor: CanonicalTensor) -> Decoded:
    if tensor.is_plain:
        return tensor.elements.reader(read_bytes)
    numbers = MatrixValues(tensor=tensor, shape=tensor.shape, dtype="F32", rows=tensor.rows)
    return numbers.reader(read_bytes)
