"""What goes into the archive of a gpt-oss model, and what the manifest says of it.

Keys are the names of the checkpoint. The rows of gate_up_proj (blocks, scales and bias) are taken
apart into all gate rows, then all up rows. The weights of attention and of the head become blocks
where that is asked for; everything else keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mxc.compiler.checkpoints.gpt_oss import GptOss
from mxc.compiler.checkpoints.gpt_oss_config import BLOCK
from mxc.compiler.checkpoints.tensors import TensorRecord
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.quantised import Loss, Part, Quantised
from mxc.dialects.errors import CheckpointError
from mxc.dialects.formats import BlockFormat
from mxc.dialects.manifest import BLOCKS, SCALES, WeightRecord
from mxc.dialects.recipes import ScaleRecipe

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, kw_only=True)
class Dense:
    """What dense weights are quantised to."""

    format: BlockFormat
    recipe: ScaleRecipe


def dense_weights(model: GptOss) -> dict[str, str]:
    """Key -> tensor of every plain matrix that is multiplied with, but the router's.

    The head that is the embedding too has a key of its own: the embedding is looked up.
    """
    weights = {
        name: name
        for name in model.checkpoint.tensors
        if ".self_attn." in name and name.endswith("_proj.weight")
    }
    return weights | {_HEAD: _EMBEDDING if model.config.tie_word_embeddings else _HEAD}


def require_whole_blocks(model: GptOss, dense: Dense) -> None:
    """Raise CheckpointError for the first dense weight whose rows are no whole number of blocks."""
    for name in dense_weights(model).values():
        record = model.checkpoint.record(name)
        if record.shape[1] % dense.format.block:
            raise CheckpointError(
                f"{record.file}: tensor {name} is {record.describe()}: {dense.format} wants rows "
                f"that are a multiple of {dense.format.block}; leave --quantize-dense out"
            )


def plan_tensors(
    model: GptOss,
    generated: Mapping[str, NDArray[Any]] | None = None,
    panels: Mapping[str, str] | None = None,
    dense: Dense | None = None,
) -> tuple[PackItem, ...]:
    """One item a tensor of the checkpoint, and one for each array that the compiler made.

    A weight that is quantised to `dense` is two items instead. `panels`: the panel layout of the
    tensors that kernels read so, by key. Raises ValueError where an array has the key of a tensor.
    """
    made = generated or {}
    if taken := sorted(made.keys() & model.checkpoint.tensors.keys()):
        raise ValueError(f"keys of checkpoint tensors: {', '.join(taken)}")
    quantised = {} if dense is None else dense_weights(model)
    kept = model.checkpoint.tensors.keys() - (set(quantised.values()) - {_EMBEDDING})
    places = panels or {}
    items = [
        PackItem(
            key=name,
            source=record,
            layout=_layout(name),
            panels=places.get(name),
            experts=".mlp.experts." in name,
            scales=name.endswith(SCALES),
        )
        for name, record in model.checkpoint.tensors.items()
        if name in kept
    ]
    for key, name in quantised.items():
        items += _parts(key, model.checkpoint.record(name), places, dense)
    items += [PackItem(key=key, source=array) for key, array in made.items()]
    return tuple(items)


def _parts(
    key: str, source: TensorRecord, panels: Mapping[str, str], dense: Dense | None
) -> list[PackItem]:
    """The elements and the scales of one quantised weight."""
    if dense is None:
        return []
    return [
        PackItem(
            key=key + suffix,
            source=source,
            panels=panels.get(key + suffix),
            quantised=Quantised(format=dense.format, recipe=dense.recipe, part=part),
        )
        for suffix, part in ((BLOCKS, Part.ELEMENTS), (SCALES, Part.SCALES))
    ]


def plan_weights(
    model: GptOss,
    generated: Mapping[str, NDArray[Any]] | None = None,
    panels: Mapping[str, str] | None = None,
    dense: Dense | None = None,
    losses: Mapping[str, Loss] | None = None,
) -> dict[str, WeightRecord]:
    """The manifest's word on every tensor; the blocks and scales of a weight are one record.

    That record has the key without `_blocks`, and the logical shape [experts, rows, K] or
    [rows, K]. `losses`: what quantising changed, by the key of the blocks.
    """
    records: dict[str, WeightRecord] = {}
    items = {item.key: item for item in plan_tensors(model, generated, panels, dense)}
    for item in items.values():
        if item.key.endswith(SCALES):
            continue
        stem = item.key.removesuffix(BLOCKS)
        if stem != item.key:
            loss = (losses or {}).get(item.key)
            records[stem] = _blocks_record(item, items[stem + SCALES], loss)
        else:
            made = generated is not None and item.key in generated
            records[item.key] = WeightRecord(
                source="generated" if made else item.key,
                shape=item.shape,
                format=item.dtype.lower(),
                layout=item.full_layout,
            )
    return records


def _blocks_record(item: PackItem, scales: PackItem, loss: Loss | None) -> WeightRecord:
    *rows, blocks, _ = item.shape
    quantised = item.quantised
    return WeightRecord(
        source=f"{item.key}, {scales.key}" if quantised is None else _name(item),
        shape=(*rows, blocks * BLOCK),
        format="mxfp4" if quantised is None else quantised.format.name,
        block=BLOCK,
        axis=len(rows),
        nibble_order="low-even" if quantised is None else None,
        # Neither config.json nor the tensors say how the scales of experts were chosen.
        recipe="unstated" if quantised is None else str(quantised.recipe),
        layout=item.full_layout,
        scale_layout=scales.full_layout,
        sqnr=None if loss is None else loss.sqnr,
    )


def _name(item: PackItem) -> str:
    return item.source.name if isinstance(item.source, TensorRecord) else item.key


def _layout(name: str) -> str:
    return "gate-then-up" if ".gate_up_proj_" in name else "identity"
