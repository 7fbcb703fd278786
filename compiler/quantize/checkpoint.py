"""Quantizes a checkpoint: plans, writes it, and reports the loss."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.files.safetensors import CONFIG, INDEX
from mxc.compiler.leftovers import JOURNAL, resumable_folder
from mxc.compiler.pieces.run import Runner, digest_of, files_of
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.plan import Item
from mxc.compiler.quantize.request import QuantizationRequest
from mxc.compiler.quantize.write import QuantizedFiles
from mxc.errors import CheckpointError

#: Suffixes of files with weights, which are not copied to the output.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".index.json")

#: File from which worker processes read the calibration.
_CALIBRATION = "calibration.pickle"

#: Called with the source bytes done, the total, and the name of the last tensor.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class QuantizationResult:
    """The result for every tensor of a quantized checkpoint; bytes and seconds of the whole.

    `rotation` describes the rotation of hidden states, `calibration` the calibration.
    `uncalibrated` are tensors without inputs in the calibration, which were quantized as without
    one.
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
        """Loss of all quantized tensors together."""
        whole = Loss()
        for loss in self.losses.values():
            whole.add(loss)
        return whole

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
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
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> QuantizationResult:
    """Write the checkpoint `output` (a folder; a file for gguf): `source` with its matrices in
    `format`.

    - `source`: a checkpoint folder, a .safetensors or a .gguf file in bf16, f16 or f32 (gguf: also
      q8_0).
    - `recipe`: by default the recipe of least error for the format; "search" tries the neighbours
      of each scale (search.py); "gptq" in addition rounds with error feedback (feedback.py).
    - `calibration`: statistics of the inputs of layers. gptq needs it, and the search weights
      errors with it; with a calibration the default recipe is the search.
    - `rotate`: rotate the hidden states (rotate.py); the calibration is then of the rotated model.
    - `ties`, `dialect`: by default those of the dialect and of the format.
    - `include`, `exclude`: see `plan`.
    - `workers`: by default threads of this process, one per CPU, with about 30 MiB for each. The
      output does not depend on them.

    The output appears when it is complete. An interrupted run of the same request is resumed
    (pieces/run.py).

    Raises FormatError for unknown names and combinations; CheckpointError for a source that is
    damaged, already quantized, or has NaN or Inf, for an output that exists or cannot be written,
    and as `plan`; WorkerError if a worker is lost, in which case finished pieces are kept.
    """
    started = time.perf_counter()
    source, output = Path(source), Path(output)
    workers = workers or Workers()
    request = QuantizationRequest(
        source=source,
        format=format,
        recipe=recipe,
        ties=ties,
        dialect=dialect,
        include=tuple(include),
        exclude=tuple(exclude),
        rotate=rotate,
    )
    planned = request.plan(calibration)
    items, spoken = planned.items, planned.dialect
    kept = [
        item.source.name.removesuffix(".weight")
        for item in items
        if item.parts is None
        and len(item.source.shape) == 2
        and item.source.name.endswith(".weight")
    ]
    said = spoken.config(planned.block, planned.chosen, kept)
    config = {**planned.checkpoint.config, "quantization_config": said}
    known = None if calibration is None else calibration.digest()
    place = replace(request, source=source.absolute())
    digest = digest_of(place, files_of(source), known)
    total = sum(item.source.bytes for item in items)
    done = 0

    def advance(size: int, tensor: str) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total, tensor)

    _require_free(output)
    writing = planned.writing
    with resumable_folder(output, digest) as folder:
        if workers.remote and calibration is not None:
            place = replace(place, calibration=folder.absolute() / _CALIBRATION)
            (folder / _CALIBRATION).write_bytes(pickle.dumps(calibration))
        with Runner(place, writing, folder, digest, workers, output) as runner:
            writing.write(runner, advance, remote=workers.remote)
        (folder / _CALIBRATION).unlink(missing_ok=True)
        written = sum(writing.sizes.values())
        if len(writing.files) > 1:
            _write_index(writing, folder, written)
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, text in spoken.files(planned.block, kept).items():
            (folder / name).write_text(json.dumps(text, indent=2) + "\n")
        for name, content in planned.texts.items():
            (folder / name).write_bytes(content)
        if source.is_dir():
            _copy_others(source, folder)
        made = folder
        if spoken.converted:
            made, written = _converted(folder, spoken.converted, output.name, workers, digest)
        _require_free(output)  # it may have come meanwhile
        if made == folder:
            (folder / JOURNAL).unlink()
        made.rename(output)
    return QuantizationResult(
        source=source,
        output=output,
        format=planned.block.name,
        recipe=planned.recipe,
        ties=planned.ties.value,
        dialect=spoken.name,
        losses=writing.losses,
        items=items,
        bytes_read=total,
        bytes_written=written,
        seconds=time.perf_counter() - started,
        rotation=planned.rotation,
        calibration=None if calibration is None else calibration.said,
        uncalibrated=writing.uncalibrated,
    )


def _write_index(writing: QuantizedFiles, folder: Path, total: int) -> None:
    weight_map = {
        tensor.name: name
        for name, numbers in writing.files.items()
        for number in numbers
        for tensor in writing.items[number].tensors
    }
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_others(source: Path, folder: Path) -> None:
    """Copy tokenizer, generation settings and other files beside the weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != CONFIG and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)


def _converted(
    folder: Path, dialect: str, name: str, workers: Workers, digest: str
) -> tuple[Path, int]:
    """Write `folder` in a dialect that is made of the others, as `name` in it; its place and size.

    There a run that is killed leaves what the next one takes up.
    """
    from mxc.compiler.convert.checkpoint import convert  # which knows the outputs of this package

    output = folder / name
    convert(folder, dialect, output, workers=workers, made_of=digest, force=True)
    files = [output] if output.is_file() else output.glob("*.safetensors")
    return output, sum(file.stat().st_size for file in files)


def _require_free(output: Path) -> None:
    if os.path.lexists(output):
        raise CheckpointError(f"{output}: exists; remove it, or choose another --output")
