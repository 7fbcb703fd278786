"""Selection of the tensors to quantize, and the tensors written for each. Reads headers only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.quantize.outputs import OutputDialect, Parts, QuantizedTensor
from mxc.compiler.quantize.patterns import named_by
from mxc.compiler.quantize.stacked import biases_of, experts, inputs_first, is_stack
from mxc.errors import CheckpointError
from mxc.formats.formats import BlockFormat

#: Patterns of tensors that are kept unless --include names them: embedding tables, the head, norms,
#: routers, whose small differences decide which experts run, and other models beside the language
#: model.
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

#: The last parts of names of tables whose rows are looked up, which `mxc compile` reads plain.
_TABLES = ("embed_tokens", "embed_tokens_per_layer", "wte", "wpe")

#: Dtypes of unquantized weights.
_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One tensor of the source: its quantized `parts`, or the reason why it is `kept`.

    `read` replaces reading the bytes from the file. `at_once`: the tensor is read as a whole,
    because reading a part costs as much.
    """

    source: TensorRecord
    parts: Parts | None = None
    kept: str = ""
    read: Decoded | None = None
    at_once: bool = False

    @property
    def tensors(self) -> tuple[QuantizedTensor, ...]:
        """The tensors that are written for it, in this order."""
        if self.parts is None:
            return (QuantizedTensor(self.source.name, self.source.dtype, self.source.shape),)
        found = (self.parts.elements, self.parts.scales, self.parts.tensor_scale)
        return tuple(tensor for tensor in found if tensor is not None)


def plan(
    checkpoint: Checkpoint,
    output: OutputDialect,
    format: BlockFormat,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Item]:
    """Return an item for each tensor, in the order of the files, or for each expert of a stack.

    Patterns match names of tensors: with *, ? and [..] as in file names, or "re:" and a regular
    expression that matches from the start. With `include` only matching tensors are quantized;
    without, all that the dialect can hold except `EXCLUDED`. `exclude` removes tensors in either
    case.

    Raises CheckpointError if a pattern matches nothing, an included tensor cannot be quantized or
    is a table of embeddings, which no program reads in blocks, the checkpoint is already quantized,
    or nothing would be quantized; FormatError for a bad pattern.
    """
    if isinstance(checkpoint.config.get("quantization_config"), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: is quantized already (quantization_config says "
            f"{checkpoint.config['quantization_config'].get('quant_method')!r}); quantize the "
            "model in bf16 that it was made from, or use `mxc convert` for another dialect"
        )
    found = named_by([*include, *exclude, *EXCLUDED], checkpoint.tensors)
    for pattern in (*include, *exclude):
        if not found[pattern]:
            raise CheckpointError(
                f"{checkpoint.folder}: no tensor is named by the pattern {pattern!r}; "
                "`mxc inspect` lists the names"
            )
    wanted, unwanted, usual = (
        {name for pattern in patterns for name in found[pattern]}
        for patterns in (include, exclude, EXCLUDED)
    )
    items: list[Item] = []
    # Biases of experts are written with their weights.
    written: set[str] = set()
    for record in checkpoint.tensors.values():
        if record.name in wanted - unwanted:
            _require_matrix(record)
        if record.name in unwanted:
            items.append(Item(source=record, kept="excluded"))
        elif include and record.name not in wanted:
            items.append(Item(source=record, kept="not included"))
        elif not include and record.name in usual:
            items.append(Item(source=record, kept="kept by default"))
        elif is_stack(record) and record.dtype in _FLOATS and not output.stacks:
            items += _experts(record, output, format, checkpoint, asked=bool(include))
            bias = biases_of(record, checkpoint)
            written |= set() if bias is None else {bias.name}
        else:
            items.append(_item(record, output, format, checkpoint, asked=bool(include)))
    items = [item for item in items if item.source.name not in written]
    if all(item.parts is None for item in items):
        raise CheckpointError(
            f"{checkpoint.folder}: no tensor would be quantized to {format} in the dialect "
            f"{output.name}; look at the names with `mxc inspect`, and choose with --include, or "
            "choose another --dialect"
        )
    _require_distinct(items, checkpoint)
    return items


def _require_matrix(record: TensorRecord) -> None:
    if record.name.removesuffix(".weight").rpartition(".")[2] in _TABLES:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} {list(record.shape)} is a table of embeddings, "
            "which `mxc compile` reads as plain numbers alone; leave it out with --exclude"
        )


def _experts(
    record: TensorRecord,
    output: OutputDialect,
    format: BlockFormat,
    checkpoint: Checkpoint,
    *,
    asked: bool,
) -> Iterator[Item]:
    fused = checkpoint.config.get("model_type") in output.fused_gate_up
    for part, read in experts(record, checkpoint, fused=fused):
        weight = asked and len(part.shape) > 1
        item = _item(part, output, format, checkpoint, asked=weight)
        yield replace(item, read=read, at_once=True)


def _item(
    record: TensorRecord,
    output: OutputDialect,
    format: BlockFormat,
    checkpoint: Checkpoint,
    *,
    asked: bool,
) -> Item:
    reason = ""
    if record.dtype not in _FLOATS:
        reason = f"{record.dtype} is no plain float"
    elif len(record.shape) < 2:
        reason = "no matrix"
    else:
        turned = is_stack(record) and inputs_first(record, checkpoint)
        if is_stack(record) and not turned:
            reason = f"{output.name} has experts as [experts, in, out] only"
        depth = record.shape[-2 if turned else -1]
        if depth % format.block:
            reason = f"{depth} is no multiple of {format.block}"
    parts = None if reason else output.parts(record, format)
    if parts is not None:
        return Item(source=record, parts=parts)
    if not reason and len(record.shape) == 3:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} {list(record.shape)} is a stack of matrices, and "
            f"the dialect {output.name} has no name for them; leave it out with --exclude"
        )
    reason = reason or f"the dialect {output.name} has no name for it"
    if asked:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} {list(record.shape)} cannot be quantized to "
            f"{format}: {reason}; leave it out with --exclude, or choose another format or dialect"
        )
    return Item(source=record, kept=reason)


def _require_distinct(items: Sequence[Item], checkpoint: Checkpoint) -> None:
    seen: set[str] = set()
    for tensor in (tensor for item in items for tensor in item.tensors):
        if tensor.name in seen:
            raise CheckpointError(
                f"{checkpoint.folder}: {tensor.name} is there already, and a quantized weight "
                "would become it too; exclude that weight"
            )
        seen.add(tensor.name)
