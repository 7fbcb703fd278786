"""Which tensors of a checkpoint are quantised, and what every tensor becomes. Headers only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.quantize.outputs import Output, Parts, Tensor
from mxc.dialects.errors import CheckpointError, FormatError
from mxc.dialects.formats import BlockFormat

#: Left as they are unless --include names them: tables of which rows are looked up, the head, and
#: routers, whose small differences decide which experts run.
EXCLUDED = (
    "*embed*",
    "*wte*",
    "*wpe*",
    "*lm_head*",
    "*router*",
    "*.gate.weight",
    "*.gate.wg.weight",
    "*shared_expert_gate*",
    "*norm*",
    "*.conv*",
    "visual.*",
    "*vision_*",
    "*audio_*",
)

#: Dtypes that are weights in full.
_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One tensor of the source and what it becomes: `parts`, or itself and the reason `kept`.

    `read`: where its bytes come from, if they do not lie in the file as the source says.
    """

    source: TensorRecord
    parts: Parts | None = None
    kept: str = ""
    read: Decoded | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is written of it, in this order."""
        if self.parts is None:
            return (Tensor(self.source.name, self.source.dtype, self.source.shape),)
        found = (self.parts.elements, self.parts.scales, self.parts.tensor_scale)
        return tuple(tensor for tensor in found if tensor is not None)


def plan(
    checkpoint: Checkpoint,
    output: Output,
    format: BlockFormat,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Item]:
    """An item for each tensor, in the order of the files.

    Patterns are for names of tensors: with *, ? and [..] as in file names, or "re:" and a regular
    expression that matches from the start. With `include` these alone are quantised; without, all
    that the dialect holds but `EXCLUDED`. `exclude` takes away in either case.

    Raises CheckpointError where a pattern names nothing, an included tensor cannot be quantised,
    the checkpoint is quantised already, or nothing would be; FormatError for a bad pattern.
    """
    if isinstance(checkpoint.config.get("quantization_config"), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: is quantised already (quantization_config says "
            f"{checkpoint.config['quantization_config'].get('quant_method')!r}); quantise the "
            "model in bf16 that it was made from, or use `mxc convert` for another dialect"
        )
    wanted, unwanted = _matcher(include), _matcher(exclude)
    usual = _matcher(EXCLUDED)
    _require_use(checkpoint, [*include, *exclude])
    items = []
    for record in checkpoint.tensors.values():
        if unwanted(record.name):
            items.append(Item(source=record, kept="excluded"))
        elif include and not wanted(record.name):
            items.append(Item(source=record, kept="not included"))
        elif not include and usual(record.name):
            items.append(Item(source=record, kept="kept by default"))
        else:
            items.append(_item(record, output, format, asked=bool(include)))
    if all(item.parts is None for item in items):
        raise CheckpointError(
            f"{checkpoint.folder}: no tensor would be quantised to {format} in the dialect "
            f"{output.name}; look at the names with `mxc inspect`, and choose with --include, or "
            "choose another --dialect"
        )
    _require_distinct(items, checkpoint)
    return items


def _item(record: TensorRecord, output: Output, format: BlockFormat, *, asked: bool) -> Item:
    reason = ""
    if record.dtype not in _FLOATS:
        reason = f"{record.dtype} is no plain float"
    elif len(record.shape) < 2:
        reason = "no matrix"
    else:
        depth = record.shape[-2 if len(record.shape) == 3 else -1]
        if depth % format.block:
            reason = f"{depth} is no multiple of {format.block}"
    parts = None if reason else output.parts(record, format)
    if parts is not None:
        return Item(source=record, parts=parts)
    reason = reason or f"the dialect {output.name} has no name for it"
    if asked:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} {list(record.shape)} cannot be quantised to "
            f"{format}: {reason}; leave it out with --exclude, or choose another format or dialect"
        )
    return Item(source=record, kept=reason)


def _require_distinct(items: Sequence[Item], checkpoint: Checkpoint) -> None:
    seen: set[str] = set()
    for tensor in (tensor for item in items for tensor in item.tensors):
        if tensor.name in seen:
            raise CheckpointError(
                f"{checkpoint.folder}: {tensor.name} is there already, and a quantised weight "
                "would become it too; exclude that weight"
            )
        seen.add(tensor.name)


def _require_use(checkpoint: Checkpoint, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        matches = _matcher([pattern])
        if not any(matches(name) for name in checkpoint.tensors):
            raise CheckpointError(
                f"{checkpoint.folder}: no tensor is named by the pattern {pattern!r}; "
                "`mxc inspect` lists the names"
            )


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    found = [_expression(pattern) for pattern in patterns]
    return lambda name: any(each.match(name) for each in found)


def _expression(pattern: str) -> re.Pattern[str]:
    text = pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern)
    try:
        return re.compile(text)
    except re.error as error:
        raise FormatError(f"{pattern!r} is no regular expression ({error}); correct it") from error
