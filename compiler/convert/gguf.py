"""The plan of a GGUF file: names, order of rows and blocks as in llama.cpp.

16-bit tensors that ggml needs in f32 (norms, biases, routers) are widened, which is exact. The file
records their dtypes under `mxc.dtypes` and config.json under `mxc.config`, so that converting back
restores the bytes. Source: gguf 0.19.0 (quants.py, constants.py), convert_hf_to_gguf.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.dialects.gguf_names import ARCHITECTURES, Names, is_row
from mxc.compiler.checkpoints.dialects.gguf_names import tensor as gguf_name
from mxc.compiler.checkpoints.files.gguf import TYPES
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.convert.experts import published, split_experts, together
from mxc.compiler.convert.gguf_metadata import say
from mxc.compiler.convert.plan import (
    Bytes,
    ConversionPlan,
    ConvertedTensor,
    factors,
    number,
    refuse,
)
from mxc.compiler.tokenizers.to_gguf import metadata as tokenizer
from mxc.errors import CheckpointError
from mxc.formats.formats import E4M3, E8M0
from mxc.formats.packing import unpack_elements

#: ggml's types by name.
BY_NAME = {kind.name: kind for kind in TYPES.values()}

CONFIG_KEY, DTYPES_KEY = "mxc.config", "mxc.dtypes"

#: Dtypes with a ggml type of the same name.
_PLAIN = ("F32", "F16", "BF16", "I8", "I16", "I32", "I64", "F64")

#: Names of tensors that ggml supports in f32 only.
_WIDE = re.compile(
    r"(.*_norm|output_norm|.*\.ffn_gate_inp(_shexp)?)\.weight|.*\.bias|.*_sinks\.weight"
)


@dataclass(frozen=True)
class _Rows:
    """A selection of rows: those with the indices `pick` of each `unit` rows (or entries of a
    vector)."""

    unit: int = 1
    pick: tuple[int, ...] = (0,)

    def apply(self, rows: Bytes) -> Bytes:
        if self.unit == 1:
            return rows
        picked = rows.reshape(-1, self.unit, rows.shape[1])[:, list(self.pick)]
        return np.ascontiguousarray(picked).reshape(-1, rows.shape[1])


_ALL = _Rows()


def plan_gguf(source: CheckpointSource) -> ConversionPlan:
    """Return the plan: all tensors with names and rows in ggml's order, and the metadata.

    Raises CheckpointError as `say`, for formats without a ggml type, and if a value would change:
    NaN scales, nvfp4 rows whose length is no multiple of 64, dividing tensor scales.
    """
    kind = source.config.get("model_type")
    source = together(source)
    if kind != "gpt_oss":
        # ggml has each projection of all experts in one tensor, built here from single experts.
        source = published(split_experts(source, split=True, plain=True))
    said = say(source.config, source.tensors, str(source.path))
    names = ARCHITECTURES[said.architecture]
    written: list[ConvertedTensor] = []
    narrowed: dict[str, str] = {}
    left = dict(source.tensors)
    for group in _expert_groups(left, names):
        written += _stacked(*group)
    for tensor in left.values():
        for name, rows in _places(tensor, said.architecture, names, source.config):
            wide = _WIDE.fullmatch(name) is not None and tensor.dtype in ("BF16", "F16")
            if wide:
                narrowed[tensor.name] = tensor.dtype
            if said.stored_norms and name.endswith("_norm.weight"):
                values = tensor.values().reshape(-1) + np.float32(1)
                written.append(number(name, values, values.shape))
                continue
            written += _tensor(tensor, name, rows, wide=wide, vector=is_row(name, names))
    written += [number(name, values, values.shape) for name, values in said.rotary.items()]
    metadata = dict(said.metadata)
    metadata[CONFIG_KEY] = json.dumps(_without_quantization(source.config))
    metadata[DTYPES_KEY] = json.dumps(narrowed)
    words, unstated = tokenizer(source.path, source.config)
    metadata |= words
    notes = [*said.notes, *unstated]
    default = source.quantization.default
    if default is not None and default.activations is not None:
        notes.append(f"GGUF has no word for activations: {default.activations.format}")
    if recipes := {t.recipe for t in source.tensors.values()} - {"unstated"}:
        notes.append(f"GGUF has no word for the recipe: {', '.join(sorted(recipes))}")
    return ConversionPlan(tensors=written, config={}, notes=tuple(notes), metadata=metadata)


def _places(
    tensor: CanonicalTensor, architecture: str, names: Names, config: Mapping[str, Any]
) -> list[tuple[str, _Rows]]:
    if architecture == "gpt-oss" and (found := _gpt_oss_experts(tensor)):
        return found
    name = gguf_name(tensor.name, names) or tensor.name
    if names.pairs and (match := re.search(r"\.self_attn\.([qk])_proj\.", tensor.name)):
        key = "num_attention_heads" if match[1] == "q" else "num_key_value_heads"
        heads = config.get(key, config.get("num_attention_heads"))
        rows = tensor.shape[0]
        if type(heads) is not int or heads <= 0 or rows % (2 * heads):
            raise CheckpointError(
                f"{tensor.place} has {rows} rows, config.json says {key} {heads!r}; fetch the "
                "config.json that belongs to these weights"
            )
        half = rows // heads // 2
        pick = tuple(i % 2 * half + i // 2 for i in range(2 * half))
        return [(name, _Rows(2 * half, pick))]
    return [(name, _ALL)]


def _gpt_oss_experts(tensor: CanonicalTensor) -> list[tuple[str, _Rows]]:
    match = re.fullmatch(
        r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?", tensor.name
    )
    if match is None:
        return []
    stem, ending = f"blk.{match[1]}.ffn_", "_exps.bias" if match[3] else "_exps.weight"
    if match[2] == "down":
        return [(f"{stem}down{ending}", _ALL)]
    return [(f"{stem}gate{ending}", _Rows(2, (0,))), (f"{stem}up{ending}", _Rows(2, (1,)))]


def _expert_groups(
    left: dict[str, CanonicalTensor], names: Names
) -> Iterator[tuple[str, list[CanonicalTensor]]]:
    """Yield the name of each GGUF tensor of experts and the experts in order; remove them from
    `left`."""
    for ggml, ours in names.experts.items():
        pattern = re.compile(
            r"model\.layers\.(\d+)\." + re.escape(ours).replace(r"\{\}", r"(\d+)") + r"\.weight"
        )
        groups: dict[int, dict[int, CanonicalTensor]] = {}
        for name in [n for n in left if pattern.fullmatch(n)]:
            match = pattern.fullmatch(name)
            if match is not None:
                groups.setdefault(int(match[1]), {})[int(match[2])] = left.pop(name)
        for layer, experts in groups.items():
            first = next(iter(experts.values()))
            if sorted(experts) != list(range(len(experts))):
                raise CheckpointError(
                    f"{first.place}: of layer {layer} the experts {sorted(experts)} are there, "
                    "wanted all from 0 on; fetch the files again"
                )
            ordered = [experts[i] for i in range(len(experts))]
            for other in ordered:
                if (other.format, other.shape) != (first.format, first.shape):
                    raise refuse(other, "GGUF", f"another expert of the layer is {first.format}")
            yield f"blk.{layer}.{ggml}.weight", ordered


def _stacked(name: str, experts: list[CanonicalTensor]) -> list[ConvertedTensor]:
    """Return the experts as one tensor, and each kind of tensor scale as one tensor."""
    each = [_tensor(expert, name, _ALL, wide=False) for expert in experts]
    found = []
    for index, first in enumerate(each[0]):
        parts = [written[index] for written in each]
        shape = (len(parts), *first.shape) if index == 0 else (len(parts),)
        size = sum(part.bytes for part in parts)
        found.append(
            ConvertedTensor(
                name=first.name,
                dtype=first.dtype,
                shape=shape,
                bytes=size,
                rows=sum(part.rows for part in parts),
                read=partial(_one_after_the_other, parts),
            )
        )
    return found


def _one_after_the_other(parts: list[ConvertedTensor], start: int, count: int) -> Bytes:
    """Return rows [start, start + count) of consecutive parts with the same number of rows."""
    each, found, stop = parts[0].rows, [np.empty(0, np.uint8)], start + count
    while start < stop:
        number, inside = divmod(start, each)
        some = min(stop - start, each - inside)
        found.append(parts[number].read(inside, some).reshape(-1))
        start += some
    return np.concatenate(found)


def _tensor(
    tensor: CanonicalTensor, name: str, rows: _Rows, *, wide: bool, vector: bool = False
) -> list[ConvertedTensor]:
    """Return a tensor and its tensor scales; `vector`: a matrix of one row is written as a
    vector."""
    shape = list(tensor.shape)[vector and len(tensor.shape) > 1 :]
    vector = vector or name.endswith(".bias")
    if rows.unit > 1:
        axis = len(shape) - (1 if vector else 2)
        shape[axis] = shape[axis] // rows.unit * len(rows.pick)
    dtype, encode = _encoding(tensor, wide=wide)
    block = BY_NAME[dtype]
    unit = 1 if vector else rows.unit
    found = [
        ConvertedTensor(
            name=name,
            dtype=dtype,
            shape=tuple(shape),
            bytes=prod(shape) // block.block * block.bytes,
            rows=tensor.rows // unit,
            read=partial(_encoded, tensor, rows, encode, unit, vector),
        )
    ]
    stem = name.removesuffix(".weight")
    for scale, key in ((tensor.tensor_scale, "scale"), (tensor.input_scale, "input_scale")):
        if scale is not None:
            values = factors(scale, Convention.MULTIPLY, tensor, "GGUF")
            found.append(number(f"{stem}.{key}", values, (values.size,)))
    return found


#: Function from elements and scales of some rows to the bytes of the file.
Encode = Callable[[Bytes, Bytes | None], Bytes]


def _encoding(tensor: CanonicalTensor, *, wide: bool) -> tuple[str, Encode]:
    """Return ggml's type of a tensor, and the function that encodes its rows."""
    if tensor.format == "q8_0":
        return "Q8_0", _q8_0
    if tensor.format == "mxfp4":
        return "MXFP4", partial(_mxfp4, tensor)
    if tensor.format == "nvfp4":
        if tensor.shape[-1] % 64:
            raise refuse(tensor, "GGUF", "its NVFP4 wants rows of a multiple of 64")
        return "NVFP4", partial(_nvfp4, tensor)
    if tensor.block is not None or tensor.tensor_scale is not None or tensor.dtype not in _PLAIN:
        raise refuse(tensor, "GGUF", "it has MXFP4, NVFP4, Q8_0 and plain numbers")
    if wide:
        return "F32", partial(_widened, DTYPES[tensor.dtype])
    return tensor.dtype, lambda elements, scales: elements.reshape(-1)


def _encoded(
    tensor: CanonicalTensor,
    rows: _Rows,
    encode: Encode,
    unit: int,
    vector: bool,
    start: int,
    count: int,
) -> Bytes:
    """Return units [start, start + count) of `unit` rows, as the bytes of the file."""
    piece = tensor.piece(start * unit, count * unit)
    if vector:
        return encode(rows.apply(piece.elements.reshape(-1, DTYPES[tensor.dtype].itemsize)), None)
    scales = None if piece.scales is None else rows.apply(piece.scales)
    return encode(rows.apply(piece.elements), scales)


def _widened(dtype: np.dtype[Any], elements: Bytes, scales: Bytes | None) -> Bytes:
    wide: Bytes = elements.reshape(-1).view(dtype).astype(np.float32).view(np.uint8)
    return wide


def _halves(elements: Bytes, block: int) -> Bytes:
    """Return uint8 [rows, blocks, block / 2]: the first half of a block low, the second
    half high."""
    codes = unpack_elements(elements, "mxfp4").reshape(len(elements), -1, 2, block // 2)
    return codes[:, :, 0] | codes[:, :, 1] << np.uint8(4)


def _mxfp4(tensor: CanonicalTensor, elements: Bytes, scales: Bytes | None) -> Bytes:
    if scales is None or (scales == E8M0.nan_codes[0]).any():
        raise refuse(tensor, "GGUF", "a scale is NaN, which ggml reads as a number")
    return np.concatenate((scales[:, :, None], _halves(elements, 32)), axis=2).reshape(-1)


def _nvfp4(tensor: CanonicalTensor, elements: Bytes, scales: Bytes | None) -> Bytes:
    if scales is None or (scales >= E4M3.nan_codes[0]).any():
        raise refuse(tensor, "GGUF", "a scale is negative or NaN, which its NVFP4 cannot hold")
    codes = _halves(elements, 16).reshape(len(elements), -1, 32)
    grouped = scales.reshape(len(scales), -1, 4)
    return np.concatenate((grouped, codes), axis=2).reshape(-1)


def _q8_0(elements: Bytes, scales: Bytes | None) -> Bytes:
    if scales is None:
        raise AssertionError("q8_0 has scales")
    blocks = elements.reshape(len(elements), -1, 32)
    halves = scales.reshape(len(scales), -1, 2)
    return np.concatenate((halves, blocks), axis=2).reshape(-1)


def _without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k != "quantization_config"}
