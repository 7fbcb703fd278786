"""Loads the artifact of a command, and tells the user if a better level could not run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mxc.runtime.session import Model


def load_model(
    artifact: Path, *, device: str | None, threads: int | None, level: str | None
) -> Model:
    """Load as `mxc.load`; print a note on standard error if a better level was passed over."""
    from mxc.runtime.levels import passed_over
    from mxc.runtime.session import load

    model = load(artifact, device=device, threads=threads, level=level)
    reason = passed_over(model.manifest, model.level) if level is None else None
    if reason is not None:
        typer.echo(f"note: level {model.level} runs: {reason}", err=True)
    return model
