"""The artifact of a command, loaded, with a line on standard error where a better level waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mxc.runtime.session import Model


def load_model(
    artifact: Path, *, device: str | None, threads: int | None, level: str | None
) -> Model:
    """As `mxc.load`."""
    from mxc.runtime.levels import passed_over
    from mxc.runtime.session import load

    model = load(artifact, device=device, threads=threads, level=level)
    reason = passed_over(model.manifest, model.level) if level is None else None
    if reason is not None:
        typer.echo(f"note: level {model.level} runs: {reason}", err=True)
    return model
