"""The dialect of GGUF: MXFP4 and NVFP4 in ggml's blocks, Q8_0, and floats.

Names and the order of rows are converted to those of transformers. Experts in one tensor become one
tensor each. Rows of queries and keys whose rotary pairs are adjacent are permuted back into two
halves. Gate and up of gpt-oss are interleaved as in its other dialects. Tensors of an architecture
without a table here keep GGUF's names.

An MXFP4 scale of 0xFF is NaN here, by OCP MX 1.0; ggml decodes it as 2^128. Source: gguf 0.19.0
(quants.py), ggml-common.h (block_mxfp4, block_nvfp4, block_q8_0), convert_hf_to_gguf.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.canonical.codecs import (
    GGML_MXFP4,
    GGML_MXFP4_SCALES,
    GGML_NVFP4,
    GGML_NVFP4_SCALES,
    GGML_Q8_0,
    GGML_Q8_0_SCALES,
)
from mxc.compiler.checkpoints.canonical.stored import FileTensor, Interleaved, count_rows
from mxc.compiler.checkpoints.canonical.tensor import (
    CanonicalTensor,
    StoredPart,
    TensorScale,
    blocked,
    plain,
)
from mxc.compiler.checkpoints.dialects.gguf_names import ARCHITECTURES, Names, is_row, parameter
from mxc.compiler.checkpoints.files.gguf import GgufFile, GgufTensor, read_gguf
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.checkpoints.layers.quantization import CheckpointQuantization
from mxc.compiler.checkpoints.source import CheckpointSource, by_name
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS

NAME = "gguf"

#: No model has more; each expert becomes a tensor of its own.
_MOST_EXPERTS = 1 << 14

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def open_gguf(path: Path) -> CheckpointSource:
    """Open a .gguf file, or all files of a model from the first one. `config` is the metadata.

    Raises CheckpointError as read_gguf, and for shards that are missing or do not belong together.
    """
    files = _shards(path)
    config = files[0].metadata
    names = ARCHITECTURES.get(str(config.get("general.architecture")), Names(layers={}))
    records: dict[str, tuple[GgufTensor, TensorRecord]] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in records:
                raise CheckpointError(
                    f"{file.path}: tensor {tensor.name} is in another shard too; fetch all again"
                )
            records[tensor.name] = tensor, _record(file.path, tensor)
    tensors: list[CanonicalTensor] = []
    for name, (tensor, record) in records.items():
        if _is_scale(name, records):
            continue
        factor, static = _scales(name, records)
        weight = _weight(tensor, record, factor, static)
        tensors += _named(name, weight, names, config)
    if str(config.get("general.architecture")) == "gpt-oss":
        tensors = _weave_experts(tensors, path)
    return CheckpointSource(
        path=path,
        dialect=NAME,
        config=config,
        tensors=by_name(tensors, path),
        quantization=CheckpointQuantization(method=NAME),
    )


def _shards(path: Path) -> list[GgufFile]:
    first = read_gguf(path)
    count = first.metadata.get("split.count", 1)
    if count in (0, 1):
        return [first]
    match = _SHARD.fullmatch(path.name)
    if type(count) is not int or match is None or int(match[3]) != count or count > 99999:
        raise CheckpointError(
            f"{path}: split.count says {count!r} files; wanted a name that ends "
            f"-00001-of-{count:05}.gguf; give the files back their names"
        )
    files = []
    for number in range(1, count + 1):
        file = read_gguf(path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf"))
        if file.metadata.get("split.no", number - 1) != number - 1:
            raise CheckpointError(
                f"{file.path}: split.no is {file.metadata['split.no']}, wanted {number - 1}; "
                "give the files back their names"
            )
        files.append(file)
    return files


def _record(path: Path, tensor: GgufTensor) -> TensorRecord:
    kind, shape = tensor.type, tensor.shape
    if kind.block > 1:
        # safetensors has no dtype for blocks, so the tensor is described as bytes.
        shape = (*shape[:-1], shape[-1] // kind.block * kind.bytes)
    return TensorRecord(
        name=tensor.name,
        dtype=kind.name if kind.block == 1 else "U8",
        shape=shape,
        file=path,
        offset=tensor.offset,
        bytes=tensor.bytes,
    )


def _is_scale(name: str, records: Mapping[str, object]) -> bool:
    stem, _, kind = name.rpartition(".")
    return kind in ("scale", "input_scale") and f"{stem}.weight" in records


def _scales(
    name: str, records: Mapping[str, tuple[GgufTensor, TensorRecord]]
) -> tuple[TensorScale | None, TensorScale | None]:
    stem, _, kind = name.rpartition(".")
    if kind != "weight":
        return None, None
    found = []
    for part in ("scale", "input_scale"):
        tensor, record = records.get(f"{stem}.{part}", (None, None))
        if tensor is not None and tensor.type.name != "F32":
            raise CheckpointError(
                f"{record.file if record else ''}: tensor {tensor.name} is {tensor.type.name}, "
                "wanted F32; fetch the file again"
            )
        found.append(None if record is None else TensorScale(record=record))
    return found[0], found[1]


def _weight(
    tensor: GgufTensor,
    record: TensorRecord,
    factor: TensorScale | None,
    static: TensorScale | None,
) -> CanonicalTensor:
    kind, stated = tensor.type.name, "the type of the tensor"
    if kind in ("MXFP4", "NVFP4"):
        mx = kind == "MXFP4"
        return blocked(
            tensor.name,
            tensor.shape,
            FORMATS[kind.lower()],
            record,
            record,
            element_codec=GGML_MXFP4 if mx else GGML_NVFP4,
            scale_codec=GGML_MXFP4_SCALES if mx else GGML_NVFP4_SCALES,
            tensor_scale=factor,
            stated_in=stated,
            input_scale=static,
        )
    if kind == "Q8_0":
        rows = count_rows(tensor.shape)
        blocks = (*tensor.shape[:-1], tensor.shape[-1] // tensor.type.block)
        return CanonicalTensor(
            name=tensor.name,
            shape=tensor.shape,
            format="q8_0",
            elements=FileTensor(
                record=record, shape=tensor.shape, dtype="I8", rows=rows, codec=GGML_Q8_0
            ),
            scales=FileTensor(
                record=record, shape=blocks, dtype="F16", rows=rows, codec=GGML_Q8_0_SCALES
            ),
            block=(1, tensor.type.block),
            tensor_scale=factor,
            stated_in=stated,
            input_scale=static,
        )
    return replace(plain(record), tensor_scale=factor, input_scale=static)


def _named(
    name: str, weight: CanonicalTensor, names: Names, config: Mapping[str, Any]
) -> list[CanonicalTensor]:
    """Return the weight under transformers' names, with its rows in transformers' order."""
    found = parameter(name, names)
    if found is None:
        return [weight]
    if is_row(name, names) and len(weight.shape) == 1 and isinstance(weight.elements, FileTensor):
        shape = (1, *weight.shape)
        weight = replace(weight, shape=shape, elements=replace(weight.elements, shape=shape))
    matrix = found.endswith(".weight") and not found.endswith("norm.weight")
    least = 1 + matrix + ("{}" in found)
    if 0 in weight.shape or len(weight.shape) < least:
        raise _strange(weight, f"{least} dimensions, none of them 0")
    if names.pairs and re.search(r"\.self_attn\.[qk]_proj\.", found):
        weight = _halves(weight, found, config)
    if "{}" not in found:
        return [weight.renamed(found)]
    experts = weight.shape[0]
    if experts > _MOST_EXPERTS:
        raise _strange(weight, f"at most {_MOST_EXPERTS} experts")
    return [_slice(weight, e).renamed(found.format(e)) for e in range(experts)]


def _strange(weight: CanonicalTensor, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{weight.place} is {weight.format} {list(weight.shape)}, wanted {wanted}; the file is "
        "damaged: fetch it again"
    )


def _halves(weight: CanonicalTensor, name: str, config: Mapping[str, Any]) -> CanonicalTensor:
    key = "head_count" if ".q_proj." in name else "head_count_kv"
    prefix = f"{config.get('general.architecture')}.attention"
    heads = config.get(f"{prefix}.{key}", config.get(f"{prefix}.head_count"))
    rows = weight.shape[-2] if len(weight.shape) > 1 else weight.shape[0]
    if type(heads) is not int or heads <= 0 or rows % (2 * heads):
        raise CheckpointError(
            f"{weight.place} has {rows} rows, {prefix}.{key} is {heads!r}; wanted an even number "
            "of rows a head; the file is damaged: fetch it again"
        )
    half = rows // heads // 2
    order = tuple(2 * (i % half) + i // half for i in range(2 * half))

    def ordered(stored: StoredPart) -> StoredPart:
        if not isinstance(stored, FileTensor):
            raise AssertionError(f"{stored.name} is put in order before it is named")
        return replace(
            stored,
            order=order,
            rows=math.prod(weight.shape[:-1]) if len(weight.shape) > 1 else rows,
        )

    scales = None if weight.scales is None else ordered(weight.scales)
    return replace(weight, elements=ordered(weight.elements), scales=scales)


def _slice(weight: CanonicalTensor, index: int) -> CanonicalTensor:
    """Return one of the leading slices of a weight, which are stored one after the other."""
    count = weight.shape[0]

    def record(of: TensorRecord) -> TensorRecord:
        size = of.bytes // count
        return replace(of, shape=of.shape[1:], offset=of.offset + index * size, bytes=size)

    def part(stored: StoredPart | None) -> StoredPart | None:
        if not isinstance(stored, FileTensor):
            return stored
        return replace(
            stored,
            record=record(stored.record),
            shape=stored.shape[1:],
            rows=stored.rows // count,
        )

    def factor(scale: TensorScale | None) -> TensorScale | None:
        return None if scale is None else scale.of_slice(index, count)

    elements = part(weight.elements)
    if elements is None:
        raise AssertionError(f"{weight.name} has no elements")
    return replace(
        weight,
        shape=weight.shape[1:],
        elements=elements,
        scales=part(weight.scales),
        tensor_scale=factor(weight.tensor_scale),
        input_scale=factor(weight.input_scale),
    )


def _weave_experts(tensors: list[CanonicalTensor], path: Path) -> list[CanonicalTensor]:
    """Interleave the rows of `gate_proj` and `up_proj` of gpt-oss into `gate_up_proj`."""
    found = {tensor.name: tensor for tensor in tensors}
    result = []
    for tensor in tensors:
        match = re.fullmatch(r"(.*\.mlp\.experts\.)(gate|up|down)_proj\.(weight|bias)", tensor.name)
        if match is None:
            result.append(tensor)
            continue
        stem, which, kind = match.groups()
        # In transformers these names have no .weight, and the bias is named after the weight.
        ending = "" if kind == "weight" else "_bias"
        if which == "down":
            result.append(tensor.renamed(f"{stem}down_proj{ending}"))
        elif which == "gate":
            up = found.get(f"{stem}up_proj.{kind}")
            if len(tensor.shape) != 2 + (kind == "weight"):
                raise _strange(tensor, "what all experts of a layer have in one tensor")
            if up is None or up.shape != tensor.shape or up.format != tensor.format:
                raise CheckpointError(
                    f"{path}: {tensor.name} has no {stem}up_proj.{kind} of its shape and type; "
                    "fetch the file again"
                )
            result.append(_interleaved(tensor, up, f"{stem}gate_up_proj{ending}"))
    return result


def _interleaved(gate: CanonicalTensor, up: CanonicalTensor, name: str) -> CanonicalTensor:
    axis = 1
    shape = (*gate.shape[:axis], 2 * gate.shape[axis], *gate.shape[axis + 1 :])

    def interleave(first: StoredPart | None, second: StoredPart | None) -> Interleaved | None:
        if not isinstance(first, FileTensor) or not isinstance(second, FileTensor):
            return None
        rows = math.prod(gate.shape[: axis + 1])
        parts = (replace(first, rows=rows), replace(second, rows=rows))
        whole = (*first.shape[:axis], 2 * first.shape[axis], *first.shape[axis + 1 :])
        return Interleaved(parts=parts, shape=whole, dtype=first.dtype, rows=2 * rows)

    elements = interleave(gate.elements, up.elements)
    if elements is None:
        raise AssertionError(f"{gate.name} has no elements")
    if gate.tensor_scale is not None or up.tensor_scale is not None:
        raise CheckpointError(
            f"{gate.place}: experts of gpt-oss with tensor scales are not read; "
            "gate and up become one tensor, which has one"
        )
    return replace(
        gate, name=name, shape=shape, elements=elements, scales=interleave(gate.scales, up.scales)
    )
