"""The option that limits the compiler's time, for the commands that compile."""

from __future__ import annotations

from typing import Annotated

import typer

from mxc.compiler.steps import PHASE_TIMEOUT

PhaseTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="The longest that a pass or a phase of the compiler may take.",
        show_default=f"{PHASE_TIMEOUT:g}",
    ),
]
