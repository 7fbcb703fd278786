"""The request of `mxc quantize`, and the plan that follows from it before weights are read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.dialects import MADE
from mxc.compiler.checkpoints.files.safetensors import (
    CONFIG,
    found_instead,
    read_checkpoint,
    read_file,
)
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.least_error import recipe_for
from mxc.compiler.quantize.outputs import OutputDialect, output_dialect
from mxc.compiler.quantize.plan import Item, plan
from mxc.compiler.quantize.rotate import rotated
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.compiler.quantize.search import FEEDBACK, SEARCH
from mxc.compiler.quantize.write import QuantizedFiles
from mxc.errors import CheckpointError, FormatError
from mxc.formats.formats import BlockFormat, block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.rounding import Ties, tie_rule


@dataclass(frozen=True, kw_only=True)
class PreparedQuantization:
    """A request with its source opened: headers are read, and everything to write is known."""

    block: BlockFormat
    dialect: OutputDialect
    chosen: ScaleRecipe | None
    recipe: str | None
    ties: Ties
    checkpoint: Checkpoint
    texts: Mapping[str, bytes]
    rotation: str | None
    items: Sequence[Item]
    writing: QuantizedFiles


@dataclass(frozen=True, kw_only=True)
class QuantizationRequest:
    """The options of quantize_checkpoint; as a Job it is opened in other processes.

    `calibration` is the file with the pickled Calibration of this run, for those processes only.
    """

    source: Path
    format: str
    recipe: str | None
    ties: str | None
    dialect: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    rotate: bool
    calibration: Path | None = None

    def open(self) -> QuantizedFiles:
        """Return the object that computes pieces, in a worker process."""
        known: Calibration | None = None
        if self.calibration is not None:
            known = pickle.loads(self.calibration.read_bytes())
        return self.plan(known).writing

    def plan(self, calibration: Calibration | None) -> PreparedQuantization:
        """Open the source and plan. Raises as quantize_checkpoint, except for errors of the
        output."""
        block = block_format(self.format)
        spoken = output_dialect(self.dialect, block)
        recipe = _searching(self.recipe, calibration)
        search = recipe in (SEARCH, FEEDBACK)
        # The search starts at the scale without saturation.
        if search:
            chosen = None if block.tensor_scale else ScaleRecipe.RCEIL
        else:
            chosen = recipe_for(block, recipe)
        told = recipe if search else None if chosen is None else chosen.value
        rule = spoken.ties if self.ties is None else tie_rule(self.ties)
        checkpoint, reads, texts = _open(self.source)
        rotation = None
        if self.rotate:
            if not self.source.is_dir():
                raise CheckpointError(
                    f"{self.source}: --rotate: wanted a checkpoint folder, found "
                    f"{found_instead(self.source)}"
                )
            checkpoint, reads, rotation = rotated(self.source)
        items = plan(checkpoint, spoken, block, include=self.include, exclude=self.exclude)
        # Rows of a rotated matrix depend on each other.
        items = [
            replace(
                item,
                read=reads.get(item.source.name, item.read),
                at_once=item.at_once or rotation is not None,
            )
            for item in items
        ]
        quantizer = RowQuantizer(
            format=block,
            recipe=chosen,
            ties=rule,
            negative_zero=spoken.negative_zero,
            zero_scale=spoken.zero_scale(chosen),
            reciprocal=spoken.reciprocal,
            search=search,
        )
        how: dict[str, Any] = {"format": block.name, "recipe": told, "ties": rule}
        if rotation is not None:
            how["rotation"] = rotation
        if calibration is not None:
            how["calibration"] = calibration.said
        metadata = {"format": "pt", MADE: json.dumps(how)}
        return PreparedQuantization(
            block=block,
            dialect=spoken,
            chosen=chosen,
            recipe=told,
            ties=rule,
            checkpoint=checkpoint,
            texts=texts,
            rotation=rotation,
            items=items,
            writing=QuantizedFiles(items, checkpoint.files, quantizer, calibration, metadata),
        )


def _searching(recipe: str | None, calibration: Calibration | None) -> str | None:
    """Return the recipe to use. Raises FormatError if it is unknown or does not fit the
    calibration.
    """
    known = (*ScaleRecipe, SEARCH, FEEDBACK)
    if recipe not in (None, *known):
        raise FormatError(f"unknown scale recipe {recipe!r}; mxc quantizes by {', '.join(known)}")
    if calibration is None:
        if recipe == FEEDBACK:
            raise FormatError(
                "--recipe gptq: wanted the inputs of the layers, found no text; give one with "
                "--calibrate"
            )
        return recipe
    if recipe not in (None, SEARCH, FEEDBACK):
        raise FormatError(
            f"--recipe {recipe}: finds scales without looking at inputs; with --calibrate give "
            f"{SEARCH} or {FEEDBACK}"
        )
    if recipe == FEEDBACK and not calibration.feeds_back:
        raise FormatError("--recipe gptq: wanted a calibration that keeps inputs, found sums alone")
    return recipe or SEARCH


def _open(source: Path) -> tuple[Checkpoint, Mapping[str, Decoded], Mapping[str, bytes]]:
    """Return the source checkpoint, readers of decoded tensors by name, and its text files."""
    if (source / CONFIG).is_file():
        return read_checkpoint(source), {}, {}
    if source.suffix == ".safetensors":
        records, metadata = read_file(source)
        found = Checkpoint(
            folder=source, config={}, tensors=records, files=(source,), metadata=metadata
        )
        return found, {}, {}
    if source.suffix == ".gguf":
        from mxc.compiler.quantize.gguf_source import open_source  # reads configs of models

        gguf = open_source(source)
        return gguf.checkpoint, gguf.reads, gguf.texts
    raise CheckpointError(
        f"{source}: wanted a checkpoint folder (with {CONFIG}), a .safetensors or a .gguf file; "
        f"found {found_instead(source)}"
    )
