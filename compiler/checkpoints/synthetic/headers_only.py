"""Safetensors files with a valid header and sparse data, for code that only needs shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.files.tensors import DTYPES


def write_headers(file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """Write a file of `tensors`, name -> (dtype, shape), whose data is a hole that reads as zeros.

    Returns the size of the data in bytes.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return end
