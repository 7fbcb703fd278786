"""The dialect of gpt-oss in transformers: the experts in mxfp4, everything else dense.

A weight `X` [E, out, in] is stored as `X_blocks` U8 [E, out, in / 32, 16], the even element in the
low nibble, and `X_scales` U8 [E, out, in / 32]. Source: transformers 5.23 integrations/mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxc.artifact.manifest import BLOCKS, SCALES
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, blocked, plain
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.layers.modules import names, require
from mxc.compiler.checkpoints.layers.quantization import (
    CheckpointQuantization,
    Scheme,
    Syntax,
    excluding,
)
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS

METHOD = "mxfp4"
_MXFP4 = FORMATS["mxfp4"]


def quantization(raw: Mapping[str, Any], place: str = CONFIG) -> CheckpointQuantization:
    """Return the declarations of a `quantization_config` of method mxfp4."""
    excluded = names(raw, "modules_to_not_convert", place)
    return CheckpointQuantization(
        method=METHOD,
        default=Scheme(format="mxfp4", stated_in=f"quantization_config of {place}"),
        rules=excluding(excluded, Syntax.PREFIX),
        excluded=tuple(excluded),
    )


def read(
    checkpoint: Checkpoint,
    declared: CheckpointQuantization,
    blocks: str = BLOCKS,
    scales: str = SCALES,
) -> list[CanonicalTensor]:
    """Return every tensor; `blocks` and `scales` are the suffixes of the two parts of a weight.

    Raises CheckpointError for one part without the other, other dtypes or shapes, and for an
    excluded layer in blocks.
    """
    tensors = []
    for name, record in checkpoint.tensors.items():
        stem = name.removesuffix(blocks)
        if name.endswith(scales) and name.removesuffix(scales) + blocks in checkpoint.tensors:
            continue
        if stem == name:
            if name.endswith(scales):
                raise CheckpointError(
                    f"{record.file}: tensor {name} are scales without their blocks; wanted "
                    f"{name.removesuffix(scales) + blocks} too; fetch the files again"
                )
            tensors.append(plain(record))
            continue
        found = checkpoint.tensors.get(stem + scales)
        if found is None:
            raise CheckpointError(
                f"{record.file}: tensor {name} are blocks without their scales; wanted "
                f"{stem + scales} too; fetch the files again"
            )
        if len(record.shape) < 3 or record.shape[-1] != _MXFP4.block_bytes:
            raise CheckpointError(
                f"{record.file}: tensor {name} is {record.describe()}; mxfp4 wants U8 "
                f"[.., rows, blocks, {_MXFP4.block_bytes}]; fetch the file again"
            )
        require(record, ("U8",), None, "mxfp4")
        require(found, ("U8",), record.shape[:-1], f"{name} {list(record.shape)}")
        scheme = declared.scheme(stem)
        if scheme is None:
            raise CheckpointError(
                f"{record.file}: tensor {name} says that {stem} is in mxfp4, "
                "modules_to_not_convert excludes it; fetch the config that belongs to the weights"
            )
        tensors.append(
            blocked(
                stem,
                (*record.shape[:-2], record.shape[-2] * _MXFP4.block),
                _MXFP4,
                record,
                found,
                stated_in=scheme.stated_in,
            )
        )
    return tensors
