"""Converts between experts in one tensor and experts as layers of their own.

  together  X.experts.0.gate_up_proj.weight, ..  ->  X.experts.gate_up_proj [E, out, in]
  split_experts     the inverse, with gate and up as one weight or as two

Rows of gate and up alternate in gpt-oss; in other models all rows of gate come first. Nothing is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mxc.compiler.checkpoints.canonical.slices import entries, half_of, leading_slice
from mxc.compiler.checkpoints.canonical.stored import Concatenated, Interleaved
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, StoredPart
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.layers.experts import is_transposed
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.convert.plan import Bytes, ConvertedTensor, part_of
from mxc.errors import CheckpointError

_EACH = re.compile(
    r"(?P<stem>.*\.experts)\.(?P<expert>\d+)\.(?P<projection>\w+_proj)\.(?P<kind>weight|bias)"
)
_WHOLE = re.compile(
    r"(?P<whole>(?P<stem>.*\.experts)\.(?P<projection>gate_up_proj|down_proj))(?P<bias>_bias)?"
)

#: model_type -> (pattern in transformers' module names, replacement in published checkpoints).
_MIXTRAL = (
    (r"\.mlp\.", ".block_sparse_moe."),
    (r"(\.experts\.\d+)\.gate_proj\.", r"\1.w1."),
    (r"(\.experts\.\d+)\.up_proj\.", r"\1.w3."),
    (r"(\.experts\.\d+)\.down_proj\.", r"\1.w2."),
)
_PUBLISHED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mixtral": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
}


def together(source: CheckpointSource) -> CheckpointSource:
    """Return gpt-oss with each projection of all experts as one tensor, as it was published."""
    if source.config.get("model_type") != "gpt_oss":
        return source
    groups: dict[tuple[str, str, str], dict[int, CanonicalTensor]] = {}
    tensors: dict[str, CanonicalTensor] = {}
    for name, tensor in source.tensors.items():
        if found := _EACH.fullmatch(name):
            key = found["stem"], found["projection"], found["kind"]
            groups.setdefault(key, {})[int(found["expert"])] = tensor
        else:
            tensors[name] = tensor
    for (stem, projection, kind), experts in groups.items():
        if sorted(experts) != list(range(len(experts))):
            raise CheckpointError(
                f"{next(iter(experts.values())).place}: of {stem} the experts {sorted(experts)} "
                "are there, wanted all from 0 on; fetch the files again"
            )
        ordered = [experts[number] for number in range(len(experts))]
        if projection == "up_proj" and (stem, "gate_proj", kind) in groups:
            continue
        if projection == "gate_proj":
            up = groups.get((stem, "up_proj", kind), {})
            if up.keys() != experts.keys():
                raise CheckpointError(f"{ordered[0].place}: {stem} has other experts in up_proj")
            pairs = zip(ordered, [up[number] for number in range(len(experts))], strict=True)
            ordered = [_combined([gate, half], "alternately") for gate, half in pairs]
            projection = "gate_up_proj"
        name = f"{stem}.{projection}{'_bias' if kind == 'bias' else ''}"
        tensors[name] = _combined(ordered, "experts").renamed(name)
    return replace(source, tensors=tensors)


def split_experts(
    source: CheckpointSource, *, split: bool, plain: bool = False
) -> CheckpointSource:
    """Return experts in blocks as layers of their own, with their biases; with `plain` all experts.

    `split`: gate and up are two layers. The declared quantization of activations applies to each.
    """
    interleaved = source.config.get("model_type") == "gpt_oss"
    tensors: dict[str, CanonicalTensor] = {}
    for name, tensor in source.tensors.items():
        found = _WHOLE.fullmatch(name)
        weight = None if found is None else source.tensors.get(found["whole"])
        if found is None or weight is None or not (plain or weight.block is not None):
            tensors[name] = tensor
            continue
        for expert in range(tensor.shape[0]):
            one = leading_slice(tensor, expert)
            stem, kind = f"{found['stem']}.{expert}", "bias" if found["bias"] else "weight"
            if found["projection"] == "down_proj" or not split:
                tensors[f"{stem}.{found['projection']}.{kind}"] = one
                continue
            for half, projection in enumerate(("gate_proj", "up_proj")):
                tensors[f"{stem}.{projection}.{kind}"] = half_of(one, half, interleaved)
    return replace(source, tensors={name: t.renamed(name) for name, t in tensors.items()})


def published(source: CheckpointSource) -> CheckpointSource:
    """Return the source with names of transformers' modules replaced by published names."""
    tensors = source.tensors
    for pattern, name in _PUBLISHED.get(str(source.config.get("model_type")), ()):
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    return replace(source, tensors={name: t.renamed(name) for name, t in tensors.items()})


def as_it_is(tensor: CanonicalTensor, source: CheckpointSource) -> ConvertedTensor:
    """Return a plain tensor to write; experts that transformers has as [E, in, out] are
    transposed."""
    if not is_transposed(tensor.name, source.config):
        return part_of(tensor.elements, tensor.name, tensor.dtype, tensor.shape)
    experts, outputs, depth = tensor.shape
    return ConvertedTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=(experts, depth, outputs),
        bytes=tensor.elements.bytes,
        rows=experts,
        read=partial(_transposed, tensor.elements, experts),
    )


def _transposed(part: StoredPart, experts: int, start: int, count: int) -> Bytes:
    """Return some experts, each transposed."""
    rows, entry = part.rows // experts, DTYPES[part.dtype].itemsize
    matrices = part.read(start * rows, count * rows).view(f"V{entry}").reshape(count, rows, -1)
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).reshape(-1).view(np.uint8)


def _combined(tensors: Sequence[CanonicalTensor], how: str) -> CanonicalTensor:
    """Combine tensors of equal shape: rows "alternately", or stacked along a new axis
    ("experts")."""
    first = tensors[0]
    for other in tensors:
        if (other.format, other.shape) != (first.format, first.shape):
            raise CheckpointError(
                f"{other.place} is {other.format} {list(other.shape)}, {first.place} is "
                f"{first.format} {list(first.shape)}: of experts of one layer that is not read"
            )
        if other.tensor_scale is not None:
            raise CheckpointError(
                f"{other.place}: experts with a tensor scale each do not become one tensor"
            )

    def shape(of: tuple[int, ...]) -> tuple[int, ...]:
        return (len(tensors), *of) if how == "experts" else (len(tensors) * of[0], *of[1:])

    def part(parts: Iterable[StoredPart | None]) -> StoredPart | None:
        found = [entries(each, first) for each in parts if each is not None]
        if not found:
            return None
        rows = sum(each.rows for each in found)
        kind = Concatenated if how == "experts" else Interleaved
        return kind(
            parts=tuple(found), shape=shape(found[0].shape), dtype=found[0].dtype, rows=rows
        )

    elements = part(tensor.elements for tensor in tensors)
    if elements is None:
        raise AssertionError(f"{first.name} has no elements")
    scales = part(tensor.scales for tensor in tensors)
    return replace(first, shape=shape(first.shape), elements=elements, scales=scales)
