"""From a checkpoint in full precision to a quantised one: plan, write, and say what was lost."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.dialects import MADE
from mxc.compiler.checkpoints.files.safetensors import (
    CONFIG,
    INDEX,
    SINGLE,
    found_instead,
    read_checkpoint,
    read_file,
)
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.leftovers import partial_folder
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.least_error import recipe_for
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.outputs import output_dialect
from mxc.compiler.quantize.plan import Item, plan
from mxc.compiler.quantize.rotate import rotated
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.compiler.quantize.search import FEEDBACK, SEARCH
from mxc.compiler.quantize.write import Writer
from mxc.errors import CheckpointError, FormatError
from mxc.formats.formats import block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.rounding import tie_rule

#: Files that hold weights, which are not copied beside the new ones.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".index.json")

#: Called with the bytes of the source that are done, all of them, and the tensor that was last.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A quantised checkpoint: what became of every tensor. Bytes and seconds of the whole.

    `rotation` is what hidden states were rotated by, `calibration` what a calibration says of
    itself; `uncalibrated` are the tensors of whose inputs it says nothing, which were quantised as
    without one.
    """

    source: Path
    output: Path
    format: str
    recipe: str | None
    ties: str
    dialect: str
    losses: Mapping[str, Loss]
    items: Sequence[Item]
    bytes_read: int
    bytes_written: int
    seconds: float
    rotation: str | None = None
    calibration: Mapping[str, Any] | None = None
    uncalibrated: Sequence[str] = ()

    @property
    def total(self) -> Loss:
        """All tensors that were quantised, together."""
        whole = Loss()
        for loss in self.losses.values():
            whole.add(loss)
        return whole

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        total = self.total
        return {
            "source": str(self.source),
            "output": str(self.output),
            "format": self.format,
            "recipe": self.recipe,
            "ties": self.ties,
            "dialect": self.dialect,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "seconds": round(self.seconds, 3),
            "mb_per_second": round(self.bytes_read / max(self.seconds, 1e-9) / 1e6, 1),
            "sqnr": total.sqnr,
            "output_sqnr": total.output_sqnr,
            "saturated_share": total.saturated_share,
            "rotation": self.rotation,
            "calibration": self.calibration,
            "uncalibrated": list(self.uncalibrated),
            "tensors": [
                {
                    "name": item.source.name,
                    "shape": list(item.source.shape),
                    "elements": self.losses[item.source.name].elements,
                    "sqnr": self.losses[item.source.name].sqnr,
                    "output_sqnr": self.losses[item.source.name].output_sqnr,
                    "saturated_share": self.losses[item.source.name].saturated_share,
                }
                for item in self.items
                if item.parts is not None
            ],
            "kept": [
                {"name": item.source.name, "reason": item.kept}
                for item in self.items
                if item.parts is None
            ],
        }


def quantize_checkpoint(
    source: str | Path,
    output: str | Path,
    format: str,
    *,
    recipe: str | None = None,
    ties: str | None = None,
    dialect: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    calibration: Calibration | None = None,
    rotate: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Write the folder `output` (of gguf a file): `source`, its matrices in blocks of `format`.

    `source` is a checkpoint folder, a .safetensors or a .gguf file in bf16, f16 or f32 (of gguf
    also q8_0). Without `recipe` it is that of least error; "search" tries the
    neighbours of each scale (search.py), "gptq" then rounds with feedback of errors (feedback.py).
    `calibration`: what layers are fed with, which gptq needs, and the search counts errors by; with
    one the search is the default. `rotate`: hidden states are rotated (rotate.py), and the
    calibration is of the rotated model. Without `ties` and `dialect` the default
    of the dialect, and of the format.
    `include`, `exclude`: see `plan`. The output is the same for any number of `workers`, by
    default one a CPU, and takes about 30 MiB for each. The folder appears when all is in it.

    Raises FormatError for names that are unknown or do not go together; CheckpointError for
    a source that is damaged, quantised, or holds NaN or Inf, an output that exists or cannot be
    written, and as `plan`.
    """
    started = time.perf_counter()
    source, output = Path(source), Path(output)
    block = block_format(format)
    spoken = output_dialect(dialect, block)
    recipe = _searching(recipe, calibration)
    search = recipe in (SEARCH, FEEDBACK)
    # The search begins at the scale with which nothing saturates.
    if search:
        chosen = None if block.tensor_scale else ScaleRecipe.RCEIL
    else:
        chosen = recipe_for(block, recipe)
    told = recipe if search else None if chosen is None else chosen.value
    rule = spoken.ties if ties is None else tie_rule(ties)
    checkpoint, reads, texts = _open(source)
    rotation = None
    if rotate:
        if not source.is_dir():
            raise CheckpointError(
                f"{source}: --rotate: wanted a checkpoint folder, found {found_instead(source)}; "
                "a .gguf becomes one with `mxc convert`"
            )
        checkpoint, reads, rotation = rotated(source)
    items = plan(checkpoint, spoken, block, include=include, exclude=exclude)
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
    kept = [
        item.source.name.removesuffix(".weight")
        for item in items
        if item.parts is None
        and len(item.source.shape) == 2
        and item.source.name.endswith(".weight")
    ]
    config = {**checkpoint.config, "quantization_config": spoken.config(block, chosen, kept)}
    total = sum(item.source.bytes for item in items)
    done = 0

    def advance(size: int, tensor: str) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total, tensor)

    with (
        _beside(output) as folder,
        Writer(quantizer, workers or _cpus(), advance, calibration) as writer,
    ):
        written = _write_files(checkpoint, items, folder, writer, metadata)
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, said in spoken.files(block, kept).items():
            (folder / name).write_text(json.dumps(said, indent=2) + "\n")
        for name, content in texts.items():
            (folder / name).write_bytes(content)
        if source.is_dir():
            _copy_others(source, folder)
        if spoken.converted:
            written = _converted(folder, spoken.converted, output)
        else:
            _require_free(output)  # it may have come meanwhile
            folder.rename(output)
    return Result(
        source=source,
        output=output,
        format=block.name,
        recipe=told,
        ties=rule.value,
        dialect=spoken.name,
        losses=writer.losses,
        items=items,
        bytes_read=total,
        bytes_written=written,
        seconds=time.perf_counter() - started,
        rotation=rotation,
        calibration=None if calibration is None else calibration.said,
        uncalibrated=writer.uncalibrated,
    )


def _searching(recipe: str | None, calibration: Calibration | None) -> str | None:
    """The recipe with a calibration, or without. Raises FormatError where they do not fit."""
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
    """The source, what is decoded when it is read by name, and the texts that are in it."""
    if source.is_dir():
        return read_checkpoint(source), {}, {}
    if source.suffix == ".safetensors":
        records, metadata = read_file(source)
        found = Checkpoint(
            folder=source, config={}, tensors=records, files=(source,), metadata=metadata
        )
        return found, {}, {}
    if source.suffix == ".gguf":
        from mxc.compiler.quantize.gguf_source import open_source  # which reads models' configs

        gguf = open_source(source)
        return gguf.checkpoint, gguf.reads, gguf.texts
    raise CheckpointError(
        f"{source}: wanted a checkpoint folder (with {CONFIG}), a .safetensors or a .gguf file; "
        f"found {found_instead(source)}"
    )


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def _write_files(
    checkpoint: Checkpoint,
    items: Sequence[Item],
    folder: Path,
    writer: Writer,
    metadata: dict[str, str],
) -> int:
    """The tensors, in files of the names that the source's have; the index where it has one."""
    weight_map: dict[str, str] = {}
    written = 0
    alone = len(checkpoint.files) == 1
    for file in checkpoint.files:
        name = SINGLE if alone else file.name
        here = [item for item in items if item.source.file == file]
        written += writer.write(folder / name, here, metadata)
        weight_map |= {tensor.name: name for item in here for tensor in item.tensors}
    if not alone:
        total = sum((folder / name).stat().st_size for name in set(weight_map.values()))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return written


def _copy_others(source: Path, folder: Path) -> None:
    """Tokenizer, generation settings and what else lies beside the weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != CONFIG and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)


def _converted(folder: Path, dialect: str, output: Path) -> int:
    """Write `folder` as `output` in a dialect that is made of the others; its size."""
    from mxc.compiler.convert.checkpoint import convert  # which knows the outputs of this package

    convert(folder, dialect, output)
    files = [output] if output.is_file() else output.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _require_free(output: Path) -> None:
    if os.path.lexists(output):
        raise CheckpointError(f"{output}: exists; remove it, or choose another --output")


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A hidden folder beside `output`, which is gone at the end unless it was renamed."""
    _require_free(output)
    with partial_folder(output) as partial:
        yield partial
