"""Binds the parameters of a model to the tensors of a checkpoint.

Every tensor that the model needs must be present, in the shape that config.json implies and in a
format that the program can read. unread.py handles the tensors that no parameter reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mxc.compiler.checkpoints.canonical.slices import columns_of, numbers_of
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.models.blocks.devices import Device
from mxc.compiler.models.blocks.parameters import CheckpointRows, Parameter
from mxc.compiler.models.blocks.weights import ELEMENTS, Formats
from mxc.compiler.models.decoder import Decoder
from mxc.compiler.models.float_scales import packed_format, sharing_rows
from mxc.compiler.models.fused_layers import rows_of
from mxc.dialects.reasons import Reason
from mxc.errors import CheckpointError
from mxc.formats.formats import F32, FORMATS, INT8, BlockFormat
from mxc.formats.recipes import ScaleRecipe
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True, kw_only=True)
class DenseQuantization:
    """The format and scale recipe to which plain matrices are quantized while they are packed."""

    format: BlockFormat
    recipe: ScaleRecipe


@dataclass(frozen=True, kw_only=True)
class BoundParameter:
    """A parameter with the tensors that contain its rows, all of one format.

    `format`: the name, in the manifest, of the format that the program reads. `blocks`: the record
    of that format if it is a block format. `dense`: how plain tensors are quantized to it.
    `decoded`: why no kernel reads the checkpoint's format `stored` here, so that the values are
    packed in `format` instead.
    """

    parameter: Parameter
    tensors: tuple[CanonicalTensor, ...]
    format: str
    blocks: BlockFormat | None = None
    dense: DenseQuantization | None = None
    decoded: Reason | None = None
    stored: str = ""

    @property
    def key(self) -> str:
        """The name of the parameter."""
        return self.parameter.key


def bind(
    decoder: Decoder,
    source: CheckpointSource,
    dense: DenseQuantization | None = None,
    unit: MatrixUnit | None = None,
    devices: int = 1,
) -> tuple[tuple[BoundParameter, ...], Mapping[str, CanonicalTensor]]:
    """Return every parameter with its tensors, in model order, and the tensors not used.

    unit: the matrix unit of the GPU whose kernels read the weights, None for CPUs. devices: how
    many of them have a part of the parameters. Raises
    CheckpointError for a tensor that is missing, has another shape than config.json says, or has a
    format that cannot be read for its parameter.
    """
    source = _named(decoder, source)

    def format_of(name: str) -> str | None:
        tensor = source.tensors.get(name)
        if tensor is None:
            return None
        if tensor.format in FORMATS or tensor.is_plain:
            return tensor.format
        read = packed_format(tensor, unit)
        return f"{tensor.format}, {read.text if isinstance(read, Reason) else read.name}"

    parameters = [
        part
        for each in decoder.parameters(format_of, head=dense is not None)
        for part in (
            each.apart()
            if dense is not None and format_of(each.rows[0].tensor) in ELEMENTS
            else (each,)
        )
    ]
    bound = tuple(_bind(each, source, dense, unit) for each in parameters)
    if unit is not None and devices == 1:
        # Kernels for GPUs take scales that rows share; a device may have a part of such rows.
        bound = tuple(map(_sharing_rows, bound))
    used = {rows.tensor for each in parameters for rows in each.rows}
    left = {name: source.tensors[name] for name in sorted(source.tensors) if name not in used}
    return bound, left


def _sharing_rows(bound: BoundParameter) -> BoundParameter:
    """Return a parameter whose rows share scales as in the checkpoint, where they may."""
    parameter, blocks = bound.parameter, bound.blocks
    if blocks is None or not parameter.matrix or parameter.layout != "identity":
        return bound
    found = sharing_rows(blocks, bound.tensors, parameter.shape)
    return replace(bound, format=found.name, blocks=found)


def _named(decoder: Decoder, source: CheckpointSource) -> CheckpointSource:
    """Rename the tensors to the model's names. Raises CheckpointError for duplicates."""
    tensors: dict[str, CanonicalTensor] = {}
    for name, tensor in source.tensors.items():
        ours = decoder.named(name)
        if ours in tensors:
            raise CheckpointError(
                f"{tensor.place} is tensor {tensors[ours].name} a second time, under another name; "
                "fetch the checkpoint again"
            )
        tensors[ours] = tensor
    return replace(source, tensors=tensors)


def formats_of(
    bound: Sequence[BoundParameter], generated: Mapping[str, object], devices: Sequence[Device]
) -> Formats:
    """Return the format of every parameter of the program, by key."""
    found: dict[str, BlockFormat | str] = {
        f"{device.prefix}{each.key}": each.blocks or each.format
        for device in devices
        for each in bound
        if device.has(each.parameter)
    }
    return found | dict.fromkeys(generated, "f32")


def _bind(
    parameter: Parameter,
    source: CheckpointSource,
    dense: DenseQuantization | None,
    unit: MatrixUnit | None,
) -> BoundParameter:
    tensors = tuple(_tensor(rows, source) for rows in parameter.rows)
    first, *others = tensors
    for other in others:
        if other.format != first.format:
            raise CheckpointError(
                f"{first.place} is {first.format}, {other.place} is {other.format}: they are read "
                f"as one weight, {parameter.key}, and must be of one format"
            )
    if parameter.turned:
        tensors = tuple(columns_of(tensor) for tensor in tensors)
        found = _read_as(parameter, tensors, dense, unit)
        if tensors[0].format != first.format:
            why = Reason("its columns are read as rows, and blocks lie along the rows that it has")
            return replace(found, decoded=why, stored=first.format)
        return found
    return _read_as(parameter, tensors, dense, unit)


def _read_as(
    parameter: Parameter,
    tensors: tuple[CanonicalTensor, ...],
    dense: DenseQuantization | None,
    unit: MatrixUnit | None,
) -> BoundParameter:
    """Bind a parameter to tensors of one format, and choose the format that the program reads."""
    first = tensors[0]
    if first.format in FORMATS:
        if not parameter.matrix:
            raise CheckpointError(
                f"{first.place} is {first.format}: wanted plain numbers "
                f"({', '.join(ELEMENTS)}) for {parameter.key}, which is no matrix that "
                "activations are multiplied with; exclude it when the checkpoint is quantized"
            )
        blocks = FORMATS[first.format]
        return BoundParameter(
            parameter=parameter, tensors=tensors, format=blocks.name, blocks=blocks
        )
    if first.scales is not None or first.tensor_scale is not None:
        read = _under_floats(parameter, tensors, unit)
        if isinstance(read, Reason):
            plain = tuple(numbers_of(tensor) for tensor in tensors)
            return BoundParameter(
                parameter=parameter,
                tensors=plain,
                format=plain[0].format,
                decoded=read,
                stored=first.format,
            )
        return BoundParameter(parameter=parameter, tensors=tensors, format=read.name, blocks=read)
    if first.format not in ELEMENTS:
        known = (*ELEMENTS, *FORMATS) if parameter.matrix else ELEMENTS
        raise CheckpointError(
            f"{first.place} is {first.format}: wanted one of {', '.join(known)} for {parameter.key}"
        )
    if dense is not None and parameter.quantizable:
        _require_whole_blocks(parameter, first, dense)
        format = dense.format
        return BoundParameter(
            parameter=parameter, tensors=tensors, format=format.name, blocks=format, dense=dense
        )
    return BoundParameter(parameter=parameter, tensors=tensors, format=first.format)


def _under_floats(
    parameter: Parameter, tensors: Sequence[CanonicalTensor], unit: MatrixUnit | None
) -> BlockFormat | Reason:
    """Return the format in which a kernel reads a weight with float scales, or why none does."""
    if not parameter.matrix:
        return _looked_up(tensors[0], unit)
    first, *others = (packed_format(tensor, unit) for tensor in tensors)
    if any(other != first for other in others):
        return Reason("they are read as one weight, and their scales are for different blocks")
    return first


def _looked_up(tensor: CanonicalTensor, unit: MatrixUnit | None) -> BlockFormat | Reason:
    """Return the format in which rows of a table with float scales are looked up, or why none."""
    if len(tensor.shape) != 2 or tensor.is_plain:
        return Reason("they are no table under float scales")
    found = packed_format(tensor, unit)
    if isinstance(found, Reason) or (found.element == INT8 and found.scale == F32):
        return found
    return Reason("they are looked up, which takes int8 in groups")


def _tensor(rows: CheckpointRows, source: CheckpointSource) -> CanonicalTensor:
    tensor = source.tensors.get(rows.tensor)
    if tensor is None:
        raise CheckpointError(
            f"{source.path}: tensor {rows.tensor} is missing; config.json asks for it with the "
            f"shape {rows.describe()}; fetch the checkpoint again, or the config.json that belongs "
            "to it"
        )
    if rows.padded:
        tensor = _unpadded(tensor, rows)
    if tensor.shape != rows.shape:
        raise CheckpointError(
            f"config.json says tensor {rows.tensor} is {rows.describe()}; in "
            f"{tensor.elements.record.file} it is {_found(tensor)}; fetch the config.json that "
            "belongs to these weights"
        )
    return tensor if rows.taken is None else rows_of(tensor, *rows.taken)


def _unpadded(tensor: CanonicalTensor, rows: CheckpointRows) -> CanonicalTensor:
    """Return the tensor without the zeros after its rows, if there are any and nothing else."""
    count, *rest = rows.shape
    more = tensor.shape[0] - count
    if more <= 0 or [*tensor.shape[1:]] != rest or rows_of(tensor, count, more).values().any():
        return tensor
    return rows_of(tensor, 0, count)


def _found(tensor: CanonicalTensor) -> str:
    """Describe a tensor: as its file states it, or the format and shape of its blocks."""
    if tensor.block is None:
        return tensor.elements.record.describe()
    return f"{tensor.format} {list(tensor.shape)}"


def _require_whole_blocks(
    parameter: Parameter, tensor: CanonicalTensor, dense: DenseQuantization
) -> None:
    if parameter.shape[-1] % dense.format.block:
        raise CheckpointError(
            f"{tensor.place} is {tensor.elements.record.describe()}: {dense.format} wants rows "
            f"that are a multiple of {dense.format.block}; leave --quantize-dense out"
        )
