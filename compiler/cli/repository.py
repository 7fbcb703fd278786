"""The option that names a version of a repository of the hub, for the commands that read one."""

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
