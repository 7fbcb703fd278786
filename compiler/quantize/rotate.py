"""Rotation of a decoder's hidden states: the same function, with weights that are easier to
quantize.

With an orthogonal matrix R, hidden states x become x R everywhere. This is exact if each part of a
layer has an RMS norm before it, because x R and x have the same norm:

  embedding E                    E R
  norm with weights w, then W    a norm with weights one, then W diag(w) R
  o_proj, down_proj W, bias b    R^T W, R^T b

The values of an attention head are rotated as well, by a matrix of the size of a head, and o_proj
undoes this rotation. A head (lm_head) tied to the embedding becomes a tensor of its own, because
the last norm is folded into it. The input of down_proj is not rotated, because the gate is not
linear. Source: Ashkboos et al., QuaRot, arXiv 2404.00456.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.files.safetensors import CONFIG, INDEX, SINGLE, read_checkpoint
from mxc.compiler.checkpoints.files.tensors import DTYPES, Checkpoint, TensorRecord, read_bytes
from mxc.compiler.models.blocks.parameters import CheckpointRows, Parameter
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.decoder import EMBEDDING, HEAD, Decoder
from mxc.compiler.models.model import open_model
from mxc.compiler.pieces.piece import CHUNK
from mxc.compiler.quantize.hadamard import Hadamard
from mxc.compiler.quantize.outputs import QuantizedTensor
from mxc.compiler.quantize.write import layout
from mxc.errors import CheckpointError

Floats = NDArray[np.float32]

#: Key of the width of hidden states in config.json.
_HIDDEN = "hidden_size"
#: Fields that say that the head is the embedding; the second one is that of LFM2.
_TIED = ("tie_word_embeddings", "tie_embedding")
#: Suffixes of files beside the weights that are copied.
_TEXTS = (".json", ".jinja")


@dataclass(frozen=True)
class WeightRotation:
    """The transformation of a matrix [N, K], or of a vector [N] as a matrix of one column.

    The columns are multiplied by `scale` float32 [K], then rotated by `columns`; the rows are
    rotated by `rows`.
    """

    scale: Floats | None = None
    columns: Hadamard | None = None
    rows: Hadamard | None = None

    @property
    def group(self) -> int:
        """Number of rows that depend on each other."""
        return 1 if self.rows is None else self.rows.width

    def apply(self, values: Floats) -> Floats:
        """Transform rows [n, K]; n is a multiple of `group`."""
        if self.scale is not None:
            values = values * self.scale
        if self.columns is not None:
            values = self.columns.rotate(np.ascontiguousarray(values))
        if self.rows is not None:
            values = self.rows.rotate(np.ascontiguousarray(values.T)).T
        return values


def rotated(place: Path) -> tuple[Checkpoint, Mapping[str, Decoded], str]:
    """Return the checkpoint in the folder `place` with rotated hidden states, and a description.

    The mapping has a reader for each changed tensor, in the dtype that it had. Raises
    CheckpointError if the architecture, or a tensor outside the model, prevents the rotation.
    """
    checkpoint = read_checkpoint(place)
    decoder = open_model(place).decoder
    _require_exact(decoder, place)
    hidden = Hadamard.of(decoder.hidden_size)
    # By the names of the model; those of the files may be others.
    known = {decoder.named(name): record for name, record in checkpoint.tensors.items()}
    rotations = dict(_rotations(decoder, replace(checkpoint, tensors=known), hidden))
    tensors, config = dict(checkpoint.tensors), dict(checkpoint.config)
    if decoder.tied:
        known[HEAD] = tensors[HEAD] = replace(known[EMBEDDING], name=HEAD)
        config |= {name: False for name in _TIED if name == _TIED[0] or name in config}
    reads = {
        known[name].name: _reader(known[name], rotation) for name, rotation in rotations.items()
    }
    for norm in _layer_norms(decoder):
        record = known[f"{norm}.weight"]
        reads[record.name] = _constant(record, 1 - decoder.norm.offset)
    said = f"hadamard {hidden.size}"
    return replace(checkpoint, tensors=tensors, config=config), reads, said


def _require_exact(decoder: Decoder, place: Path) -> None:
    norm = decoder.norm
    why = ""
    if norm.centered or norm.bias:
        why = "its norms subtract the mean or add a bias, which do not rotate"
    elif any(layer.norms.after_attention or layer.norms.after_mlp for layer in decoder.layers):
        why = "it has norms behind attention or MLP, whose weights cannot be folded into others"
    elif decoder.residuals is not None:
        why = "its layers read mixtures of earlier hidden states, which have norms of their own"
    elif decoder.next_tokens:
        why = "it has layers that predict later tokens, which read hidden states too"
    elif Hadamard.of(decoder.hidden_size).size < 2:
        why = f"its hidden states have an odd width, {decoder.hidden_size}"
    if why:
        raise CheckpointError(
            f"{place}: --rotate: {decoder.architecture} cannot be rotated exactly: {why}; leave "
            "--rotate out"
        )


def _rotations(
    decoder: Decoder, checkpoint: Checkpoint, hidden: Hadamard
) -> Iterator[tuple[str, WeightRotation]]:
    """Yield the transformation of each tensor that reads or writes hidden states or attention
    values."""
    read: set[str] = {f"{norm}.weight" for norm in _layer_norms(decoder)}
    before = dict(_norm_before(decoder))
    heads = dict(_heads(decoder))
    shapes = {name: record.shape for name, record in checkpoint.tensors.items()}
    scales: dict[str, Floats] = {}

    def scale(norm: str) -> Floats:
        if norm not in scales:
            weight = _floats(checkpoint.tensors[f"{norm}.weight"])
            scales[norm] = weight + np.float32(decoder.norm.offset)
        return scales[norm]

    yield EMBEDDING, WeightRotation(columns=hidden)
    yield HEAD, WeightRotation(scale=scale("model.norm"), columns=hidden)
    read |= {EMBEDDING, HEAD}
    for parameter, rows in _parts(decoder):
        name = rows.tensor
        if name not in shapes:
            raise CheckpointError(
                f"{checkpoint.folder}: --rotate: wanted the tensor {name}, found it as part of "
                "another, or under another name; leave --rotate out"
            )
        if name in read:
            continue
        read.add(name)
        rotation = _rotation(parameter, rows, hidden, heads)
        if rotation.columns is hidden:
            (norm,) = (norm for stem, norm in before.items() if name.startswith(stem))
            rotation = rotation if norm is None else replace(rotation, scale=scale(norm))
        if rotation.columns is not None or rotation.rows is not None:
            yield name, rotation
    for name, shape in shapes.items():
        if name not in read and len(shape) > 1:
            raise CheckpointError(
                f"{checkpoint.folder}: --rotate: the tensor {name} {list(shape)} is no part of "
                "the language model, and may read its hidden states; leave --rotate out"
            )


def _rotation(
    parameter: Parameter, rows: CheckpointRows, hidden: Hadamard, heads: Mapping[str, Hadamard]
) -> WeightRotation:
    """Return the transformation of a tensor by the meaning of its dimensions."""
    counts = [count for count, _ in rows.dims]
    if _HIDDEN in counts and (len(counts) > 2 or parameter.turned or rows.taken):
        raise CheckpointError(
            f"--rotate: the tensor {rows.tensor} {rows.describe()} holds several weights; leave "
            "--rotate out"
        )
    module = rows.tensor.rpartition(".")[0]
    if len(counts) == 1:
        if counts[0] == _HIDDEN and not rows.tensor.endswith(".bias"):
            raise CheckpointError(
                f"--rotate: the vector {rows.tensor} meets hidden states one by one, which does "
                "not rotate; leave --rotate out"
            )
        return WeightRotation(rows=hidden if counts[0] == _HIDDEN else heads.get(module))
    head = heads.get(module)
    if counts[-1] == _HIDDEN:
        return WeightRotation(columns=hidden, rows=head)
    if counts[0] == _HIDDEN:
        return WeightRotation(columns=head, rows=hidden)
    return WeightRotation()


def _parts(decoder: Decoder) -> Iterator[tuple[Parameter, CheckpointRows]]:
    for parameter in decoder.parameters(lambda name: None):
        for rows in parameter.rows:
            yield parameter, rows


def _layer_norms(decoder: Decoder) -> Iterator[str]:
    """Yield the norms whose weights are folded into the following weights."""
    for number, layer in enumerate(decoder.layers):
        for name in layer.norms.names():
            yield f"model.layers.{number}.{name}"
    yield "model.norm"


def _norm_before(decoder: Decoder) -> Iterator[tuple[str, str | None]]:
    """Yield the prefix of the weights of each part of a layer, and the norm before the part."""
    for number, layer in enumerate(decoder.layers):
        name, norms = f"model.layers.{number}", layer.norms
        first, second = norms.before_attention, norms.before_mlp
        second = first if layer.parallel else second
        for part, norm in ((layer.attention_name, first), (layer.mlp_name, second)):
            yield f"{name}.{part}.", None if norm is None else f"{name}.{norm}"


def _heads(decoder: Decoder) -> Iterator[tuple[str, Hadamard]]:
    """Yield the modules that write and read attention values, with the rotation of one head."""
    for number, layer in enumerate(decoder.layers):
        attention = layer.attention
        if not isinstance(attention, SelfAttention) or attention.fused or attention.gated:
            continue
        name, rotation = (
            f"model.layers.{number}.{layer.attention_name}",
            Hadamard.of(attention.depth),
        )
        yield f"{name}.v_proj", rotation
        yield f"{name}.o_proj", rotation


def _floats(record: TensorRecord) -> Floats:
    values = read_bytes(record, 0, record.bytes).view(DTYPES[record.dtype])
    return values.reshape(record.shape).astype(np.float32)


def _reader(record: TensorRecord, rotation: WeightRotation) -> Decoded:
    """Return a reader of the rotated tensor, in the dtype of the file tensor."""
    dtype = DTYPES[record.dtype]
    depth = record.shape[-1] if len(record.shape) > 1 else 1
    step = rotation.group * depth * dtype.itemsize

    def read(offset: int, size: int) -> NDArray[np.uint8]:
        first = offset // step * step
        end = min(-(-(offset + size) // step) * step, record.bytes)
        raw = read_bytes(record, first, end - first).view(dtype)
        turned = rotation.apply(raw.reshape(-1, depth).astype(np.float32)).astype(dtype)
        data = np.ascontiguousarray(turned).reshape(-1).view(np.uint8)
        return data[offset - first : offset - first + size]

    return read


def _constant(record: TensorRecord, value: float) -> Decoded:
    data = np.full(record.shape, value, DTYPES[record.dtype]).reshape(-1).view(np.uint8)
    return lambda offset, size: data[offset : offset + size]


def write_rotated(place: Path, folder: Path) -> None:
    """Write the checkpoint in the folder `place`, rotated, into `folder` (created) as one file."""
    checkpoint, reads, _ = rotated(place)
    folder.mkdir()
    for path in place.iterdir():
        if path.is_file() and path.suffix in _TEXTS:
            shutil.copyfile(path, folder / path.name)
    (folder / INDEX).unlink(missing_ok=True)
    (folder / CONFIG).write_text(json.dumps(checkpoint.config))
    records = list(checkpoint.tensors.values())
    header, offsets, _ = layout([QuantizedTensor(r.name, r.dtype, r.shape) for r in records], {})
    with (folder / SINGLE).open("wb") as file:
        file.write(header)
        for record in records:
            read = reads.get(record.name) or partial(read_bytes, record)
            file.seek(offsets[record.name])
            for start in range(0, record.bytes, CHUNK):
                file.write(read(start, min(CHUNK, record.bytes - start)).tobytes())
