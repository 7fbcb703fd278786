"""Tensors in checkpoint files: their location, and reads of a part of them.

Reads use `pread` into buffers of the requested size, not a mapping: touched pages of a mapped 60 GB
checkpoint would count as resident memory of the process.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxc.errors import CheckpointError

#: safetensors dtype name -> numpy dtype. The names are those of the format's own enum:
#: https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs (enum Dtype). Its
#: types narrower than a byte (F4, F6_*) are left out: no checkpoint dialect uses them for MX.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F64": np.dtype("<f8"),
}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the safetensors name of a numpy dtype. Raises CheckpointError if it has none."""
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise CheckpointError(f"no tensor file holds dtype {dtype}; supported: {', '.join(DTYPES)}")


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """One tensor in a file: `bytes` bytes at `offset` (from the start of the file), row major.

    `dtype` is a key of DTYPES; `shape` is in elements of that dtype, so packed fp4 is U8.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    bytes: int

    def describe(self) -> str:
        """Return dtype and shape as messages print them: "U8 [4, 128, 2, 16]"."""
        return f"{self.dtype} {list(self.shape)}"


def read_exactly(handle: int, offset: int, size: int, place: str) -> NDArray[np.uint8]:
    """Return `size` bytes at `offset` of an open file descriptor.

    `place` names file and tensor in messages. Raises CheckpointError if the file cannot be read or
    ends early, which means that it was truncated after its header was checked.
    """
    out = np.empty(size, np.uint8)
    view = out.data
    done = 0
    while done < size:
        try:
            count = os.preadv(handle, [view[done:]], offset + done)
        except OSError as error:
            raise CheckpointError(
                f"{place}: cannot read {size} bytes at offset {offset} ({error}); "
                "check the disk and the file, or fetch it again"
            ) from error
        if count == 0:
            raise CheckpointError(
                f"{place}: wanted {size} bytes at offset {offset}, the file ends after {done}; "
                "it was cut while it was being read: fetch it again"
            )
        done += count
    return out


def read_bytes(record: TensorRecord, start: int, size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of a tensor from its byte `start` on.

    Raises CheckpointError if the file was removed or truncated since it was opened.
    """
    try:
        handle = os.open(record.file, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{record.file}: {error.strerror}; fetch it again") from error
    try:
        place = f"{record.file}: tensor {record.name}"
        return read_exactly(handle, record.offset + start, size, place)
    finally:
        os.close(handle)


def no_tensor(name: str, tensors: Collection[str], place: Path) -> CheckpointError:
    """Return the error for a name that no tensor has, with the closest names."""
    near = difflib.get_close_matches(name, tensors, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return CheckpointError(
        f"{place}: no tensor {name} among {len(tensors)}{hint} (`mxc inspect` lists them)"
    )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder: its parsed config.json, every tensor by name, and the tensor files in order.

    `config` is empty for a bare .safetensors file. `metadata` is the merged metadata of the files'
    headers.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorRecord]
    files: tuple[Path, ...]
    metadata: dict[str, str] = field(default_factory=dict)
