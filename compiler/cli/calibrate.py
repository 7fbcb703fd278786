"""Calibration for `mxc quantize --calibrate`: runs the model on a text and collects its inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mxc.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from mxc.compiler.models.model import BoundModel
    from mxc.compiler.quantize.calibration import Calibration

#: Default number of tokens of the text that are used.
DEFAULT_TOKENS = 8192
#: Context length: number of tokens that attend to each other.
_WINDOW = 512
#: Approximate size in bytes of the inputs that one call returns.
_BUDGET = 256 << 20


def calibrate(
    source: Path, text: Path, tokens: int, scratch: Path, *, feedback: bool
) -> Calibration:
    """Return the inputs of the layers of the checkpoint `source` over the first `tokens` of a text.

    The model is compiled for this CPU into the folder `scratch`. With `feedback`, the inputs are
    kept there for rounding with error feedback. Raises CheckpointError for a source that is no
    whole model, RequestError for a text that cannot be read or is too short.
    """
    from mxc.compiler import compilation
    from mxc.compiler.cli.progress import counting, showing
    from mxc.compiler.models.model import open_model
    from mxc.compiler.quantize.calibration import Calibration
    from mxc.runtime.observed import observe
    from mxc.runtime.session import load
    from mxc.runtime.text import Text

    if not source.is_dir() and source.suffix != ".gguf":
        raise CheckpointError(
            f"{source}: --calibrate runs the model: wanted a checkpoint folder or a .gguf file, "
            "found tensors alone; leave --calibrate out"
        )
    try:
        content = text.read_bytes()
        words = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no UTF-8"
        raise RequestError(f"{text}: cannot be read ({why}); give a file of text") from error
    opened = open_model(source)
    window = min(_WINDOW, opened.decoder.max_position_embeddings)
    with showing(Console(stderr=True)) as progress:
        made = compilation.compile(
            source,
            "cpu",
            scratch / "calibration.mxc",
            max_sequence_length=window,
            observe_inputs=True,
            listing=False,
            progress=progress,
        )
    model = load(made.path)
    ids = Text.load(made.path).encode(words)[:tokens]
    said = {"text": text.name, "sha256": hashlib.sha256(content).hexdigest(), "tokens": len(ids)}
    folder = None
    if feedback:
        folder = scratch / "inputs"
        folder.mkdir()
    found = Calibration(opened, len(ids), folder, said)
    with counting("calibrate", tokens=True) as advance:
        found.said["tokens"] = observe(
            model,
            ids,
            found.add,
            lambda done, total: advance(done, total, ""),
            rows=_rows(opened),
        )
    return found


def _rows(model: BoundModel) -> int:
    """Return the number of tokens per call: a power of two for which the inputs fit the budget."""
    each = 4 * sum(
        bound.parameter.shape[-1] * (2 if bound.parameter.experts else 1)
        for bound in model.bound
        if bound.parameter.matrix
    )
    return int(1 << max(4, min(7, (_BUDGET // each).bit_length() - 1)))
