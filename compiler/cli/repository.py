"""The option for the revision of a hub repository, for the commands that read a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

Revision = Annotated[
    str | None,
    typer.Option(
        help="Of a source ORG/NAME, a repository of the Hugging Face hub: branch, tag or commit.",
        show_default="main",
    ),
]
