"""Splits fused tensors of a checkpoint: qkv_proj, and gate_up_proj of a dense MLP.

    self_attn.qkv_proj [(H + 2 V) D, hidden]   ->   q_proj, k_proj and v_proj, in this order
    mlp.gate_up_proj   [2 I, hidden]           ->   gate_proj, then up_proj

Nothing is copied: a part refers to rows of the tensor in the file. The program concatenates parts
of one format to one weight again (blocks/parameters.py: projections). Experts of a mixture are
named in blocks/expert_tensors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mxc.compiler.checkpoints.canonical.stored import RegroupedRows, SelectedRows
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, StoredPart
from mxc.compiler.checkpoints.layers.patterns import FUSED
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.decoder import Decoder
from mxc.errors import CheckpointError


def split_fused(decoder: Decoder, source: CheckpointSource) -> CheckpointSource:
    """Return the checkpoint with each part of a fused tensor as a tensor of its own.

    A tensor that the architecture itself has fused (Phi-3) stays fused. Raises CheckpointError
    where the rows of the tensor are not those of its parts, or a block of scales spans two parts.
    """
    tensors = dict(source.tensors)
    asked = {rows.tensor for each in decoder.parameters(lambda name: None) for rows in each.rows}
    for number, layer in enumerate(decoder.layers):
        name, heads = f"model.layers.{number}", layer.attention
        sizes: dict[str, tuple[int, ...]] = {}
        if isinstance(heads, SelfAttention):
            keys = heads.shared * heads.depth
            queries = heads.heads * heads.depth * (2 if heads.gated else 1)
            sizes[f"{name}.{layer.attention_name}.qkv_proj"] = (queries, keys, keys)
        if isinstance(layer.mlp, Mlp):
            sizes[f"{name}.{layer.mlp_name}.gate_up_proj"] = (layer.mlp.width, layer.mlp.width)
        for fused, rows in sizes.items():
            for kind in ("weight", "bias"):
                stored = f"{fused}.{kind}"
                if stored in tensors and stored not in asked:
                    tensors |= _parts(tensors.pop(stored), fused, kind, rows)
    return replace(source, tensors=tensors)


def _parts(
    tensor: CanonicalTensor, fused: str, kind: str, sizes: tuple[int, ...]
) -> Mapping[str, CanonicalTensor]:
    stem, _, last = fused.rpartition(".")
    names = [f"{stem}.{part}.{kind}" for part in FUSED[last]]
    if tensor.shape[0] != sum(sizes):
        raise CheckpointError(
            f"{tensor.place} is {tensor.format} {list(tensor.shape)}; config.json asks for rows "
            f"{' + '.join(map(str, sizes))} of {', '.join(FUSED[last])}; fetch the config.json "
            "that belongs to these weights"
        )
    found, first = {}, 0
    for name, count in zip(names, sizes, strict=True):
        found[name] = rows_of(tensor, first, count).renamed(name)
        first += count
    return found


def rows_of(tensor: CanonicalTensor, first: int, count: int) -> CanonicalTensor:
    """Return `count` rows of a matrix, or entries of a vector, from `first` on.

    Raises CheckpointError where they share scales with other rows.
    """
    elements = tensor.elements
    if len(tensor.shape) == 1 and elements.rows != tensor.shape[0]:
        # Selected picks rows, so each entry of the vector becomes a row.
        elements = RegroupedRows(
            part=elements, shape=elements.shape, dtype=elements.dtype, rows=tensor.shape[0]
        )
    scales, height = tensor.scales, 1 if tensor.block is None else tensor.block[0]
    if first % height or (count % height and first + count != tensor.shape[0]):
        raise CheckpointError(
            f"{tensor.place} has scales for {height} rows each, and rows {first} to "
            f"{first + count} are a layer of their own, which begins or ends between; quantize "
            "the layers apart"
        )
    return replace(
        tensor,
        shape=(count, *tensor.shape[1:]),
        elements=_picked(elements, first, count),
        scales=None if scales is None else _picked(scales, first // height, -(-count // height)),
    )


def _picked(part: StoredPart, first: int, count: int) -> StoredPart:
    shape = (count, *part.shape[1:])
    return SelectedRows(part=part, first=first, step=1, shape=shape, dtype=part.dtype, rows=count)
