"""Random checkpoints of any architecture, from its config: plain weights in one file.

They are for tests and benchmarks of shapes. transformers can load them: the names are its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mxc.compiler.checkpoints.files.safetensors import CONFIG, SINGLE
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.layers.experts import is_transposed
from mxc.compiler.checkpoints.synthetic.headers_only import write_headers
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.parameters import CheckpointRows
from mxc.compiler.models.decoder import EMBEDDING, Decoder


def write_decoder(
    folder: Path,
    config: dict[str, Any],
    *,
    dtype: str = "BF16",
    seed: int = 0,
    headers_only: bool = False,
) -> Decoder:
    """Write a checkpoint of `config` into `folder` (created) and return its model.

    The same config and seed give the same bytes. With `headers_only` the file has a valid header
    and is sparse: the data reads as zeros and takes no space. Raises CheckpointError if the config
    is refused.
    """
    decoder = read_decoder(config, CONFIG)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
    shapes = {
        rows.tensor: _stored(rows, config)
        for parameter in decoder.parameters(lambda name: None)
        for rows in parameter.rows
    }
    if headers_only:
        write_headers(folder / SINGLE, {name: (dtype, shape) for name, shape in shapes.items()})
        return decoder
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        # Rows of K elements with deviation K^-1/2 preserve the magnitude of their input.
        size = 1.0 if name == EMBEDDING else 1.5 * shape[-1] ** -0.5
        draw = random.standard_normal(shape, dtype=np.float32)
        vector = (0.0 if name.endswith("bias") else 1.0) + 0.1 * draw
        tensors[name] = (vector if len(shape) == 1 else size * draw).astype(DTYPES[dtype])
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    return decoder


def _stored(rows: CheckpointRows, config: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of a tensor in its file, where experts may be [E, in, out]."""
    if len(rows.shape) < 3 or not is_transposed(rows.tensor, config):
        return rows.shape
    *lead, outputs, inputs = rows.shape
    return (*lead, inputs, outputs)
