"""What goes into the archive of a gpt-oss model, and what the manifest says of it.

Keys are the names of the checkpoint. The rows of gate_up_proj (blocks, scales and bias) are taken
apart into all gate rows, then all up rows; everything else keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from mxc.compiler.checkpoints.gpt_oss import GptOss
from mxc.compiler.checkpoints.gpt_oss_config import BLOCK
from mxc.compiler.packing.pack import PackItem
from mxc.dialects.manifest import WeightRecord

_BLOCKS, _SCALES = "_blocks", "_scales"


def plan_tensors(
    model: GptOss,
    generated: Mapping[str, NDArray[Any]] | None = None,
    panels: Mapping[str, str] | None = None,
) -> tuple[PackItem, ...]:
    """One item a tensor of the checkpoint, and one for each array that the compiler made.

    `panels`: the panel layout of the tensors that kernels read so, by key. Raises ValueError where
    an array has the key of a tensor.
    """
    made = generated or {}
    if taken := sorted(made.keys() & model.checkpoint.tensors.keys()):
        raise ValueError(f"keys of checkpoint tensors: {', '.join(taken)}")
    items = [
        PackItem(
            key=name,
            source=record,
            layout=_layout(name),
            panels=(panels or {}).get(name),
            scales=name.endswith(_SCALES),
        )
        for name, record in model.checkpoint.tensors.items()
    ]
    items += [PackItem(key=key, source=array) for key, array in made.items()]
    return tuple(items)


def plan_weights(
    model: GptOss,
    generated: Mapping[str, NDArray[Any]] | None = None,
    panels: Mapping[str, str] | None = None,
) -> dict[str, WeightRecord]:
    """The manifest's word on every tensor; the blocks and scales of a weight are one record.

    That record has the key without `_blocks`, and the logical shape [experts, rows, K].
    """
    records: dict[str, WeightRecord] = {}
    items = {item.key: item for item in plan_tensors(model, generated, panels)}
    for item in items.values():
        if item.key.endswith(_SCALES):
            continue
        if item.key.endswith(_BLOCKS):
            stem = item.key.removesuffix(_BLOCKS)
            experts, rows, blocks, _ = item.shape
            records[stem] = WeightRecord(
                source=f"{item.key}, {stem}{_SCALES}",
                shape=(experts, rows, blocks * BLOCK),
                format="mxfp4",
                block=BLOCK,
                axis=2,
                nibble_order="low-even",
                # Neither config.json nor the tensors say how the scales were chosen.
                recipe="unstated",
                layout=item.full_layout,
                scale_layout=items[stem + _SCALES].full_layout,
            )
        else:
            made = generated is not None and item.key in generated
            records[item.key] = WeightRecord(
                source="generated" if made else item.key,
                shape=item.shape,
                format=item.dtype.lower(),
                layout=item.full_layout,
            )
    return records


def _layout(name: str) -> str:
    return "gate-then-up" if ".gate_up_proj_" in name else "identity"
