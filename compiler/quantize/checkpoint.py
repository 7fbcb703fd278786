"""From a checkpoint in full precision to a quantized one: plan, write, and say what was lost."""

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
from mxc.compiler.quantize.request import Request
from mxc.compiler.quantize.write import Writing
from mxc.errors import CheckpointError

#: Files that hold weights, which are not copied beside the new ones.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".index.json")

#: What worker processes read the calibration from.
_CALIBRATION = "calibration.pickle"

#: Called with the bytes of the source that are done, all of them, and the tensor that was last.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A quantized checkpoint: what became of every tensor. Bytes and seconds of the whole.

    `rotation` is what hidden states were rotated by, `calibration` what a calibration says of
    itself; `uncalibrated` are the tensors of whose inputs it says nothing, which were quantized as
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
        """All tensors that were quantized, together."""
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
    workers: Workers | None = None,
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
    `include`, `exclude`: see `plan`. The output is the same whoever `workers` are, by default
    threads of this process, one a CPU, and takes about 30 MiB for each. The folder appears when all
    is in it. What a killed run of the same request left is taken up (pieces/run.py).

    Raises FormatError for names that are unknown or do not go together; CheckpointError for
    a source that is damaged, quantized, or holds NaN or Inf, an output that exists or cannot be
    written, and as `plan`; WorkerError where a worker is lost, and then what is done stays.
    """
    started = time.perf_counter()
    source, output = Path(source), Path(output)
    workers = workers or Workers()
    request = Request(
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
        if spoken.converted:
            written = _converted(folder, spoken.converted, output, workers)
        else:
            _require_free(output)  # it may have come meanwhile
            (folder / JOURNAL).unlink()
            folder.rename(output)
    return Result(
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


def _write_index(writing: Writing, folder: Path, total: int) -> None:
    weight_map = {
        tensor.name: name
        for name, numbers in writing.files.items()
        for number in numbers
        for tensor in writing.items[number].tensors
    }
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_others(source: Path, folder: Path) -> None:
    """Tokenizer, generation settings and what else lies beside the weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != CONFIG and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)


def _converted(folder: Path, dialect: str, output: Path, workers: Workers) -> int:
    """Write `folder` as `output` in a dialect that is made of the others; its size."""
    from mxc.compiler.convert.checkpoint import convert  # which knows the outputs of this package

    convert(folder, dialect, output, workers=workers)
    files = [output] if output.is_file() else output.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _require_free(output: Path) -> None:
    if os.path.lexists(output):
        raise CheckpointError(f"{output}: exists; remove it, or choose another --output")
