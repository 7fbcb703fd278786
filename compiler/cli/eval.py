"""`mxc eval`: measures perplexity on a text, and the divergence between two models."""

from __future__ import annotations

import json as json_text
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxc.artifact.manifest import MANIFEST
from mxc.compiler.cli.placement import Device, Threads
from mxc.compiler.cli.repository import Revision
from mxc.compiler.cli.terminal import Wide
from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.runtime.evaluation import Evaluation
    from mxc.runtime.session import Model

#: Default number of tokens per window, if the models hold as many.
DEFAULT_WINDOW = 2048


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled model.", show_default=False)],
    perplexity: Annotated[
        Path, typer.Option(metavar="FILE", help="Text in UTF-8.", show_default=False)
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this artifact, or with this checkpoint, computed in float32.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens that see each other.",
            show_default=f"{DEFAULT_WINDOW}, or as many as the models hold",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=2, help="Take the first tokens of the text.", show_default="all"),
    ] = None,
    threads: Threads = None,
    device: Device = None,
    revision: Revision = None,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print one object for programs.")] = False,
) -> None:
    """Measure how well a model predicts a text: its perplexity.

    With --against also the KL divergence from the other model's predictions, and how often both
    find the same token most likely: what quantizing a checkpoint, or a mode of activations, costs.

    Example: mxc eval gpt-oss-20b.mxc --perplexity book.txt --against gpt-oss-20b
    """
    from mxc.compiler.cli.progress import counting
    from mxc.runtime.evaluation import evaluate
    from mxc.runtime.session import load
    from mxc.runtime.text import Text

    try:
        content = perplexity.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no UTF-8"
        raise RequestError(f"{perplexity}: cannot be read ({why}); give a file of text") from error
    model = load(artifact, device=device, threads=threads)
    ids = Text.load(artifact).encode(content)[:tokens]
    with ExitStack() as stack:
        other = None
        if against is not None:
            other = _other(stack, against, model, revision, device, threads)
        holds = min(_length(each) for each in (model, other) if each is not None)
        advance = stack.enter_context(counting("evaluate", tokens=True))
        found = evaluate(
            model,
            ids,
            window=min(DEFAULT_WINDOW, holds) if window is None else window,
            against=other,
            progress=lambda done, total: advance(done, total, ""),
        )
    if json:
        print(json_text.dumps(found.to_dict()))
        return
    _show(found, artifact, against, wide=wide)


def _length(model: Model) -> int:
    record = model.manifest.model
    if record is None:
        raise RequestError(f"{model.path}: not a language model; there are no tokens to predict")
    return record.max_sequence_length


def _other(
    stack: ExitStack,
    source: Path,
    model: Model,
    revision: str | None,
    device: str | None,
    threads: int | None,
) -> Model:
    """Return the model to compare with; a checkpoint is compiled into a folder that `stack`
    removes."""
    from mxc.runtime.session import load

    if (source / MANIFEST).is_file():
        return load(source, device=device, threads=threads)
    from rich.console import Console

    from mxc.compiler import compilation
    from mxc.compiler.checkpoints.hub import located
    from mxc.compiler.cli.progress import showing
    from mxc.compiler.cli.signals import ending_cleanly

    source = located(source, revision)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mxc-eval-")))
    with ending_cleanly(), showing(Console(stderr=True)) as progress:
        made = compilation.compile(
            source,
            "cpu",
            folder / "against.mxc",
            activations="f32",
            max_sequence_length=_length(model),
            listing=False,
            progress=progress,
        )
    return load(made.path, threads=threads)


def _show(found: Evaluation, artifact: Path, against: Path | None, *, wide: bool) -> None:
    from rich.table import Table

    from mxc.compiler.cli.terminal import Name, table_console, titled

    title = f"{found.predicted:,} tokens predicted, windows of {found.window:,}"
    table = Table(show_header=False)
    for name, each in ((artifact, found.model), (against, found.against)):
        if each is not None:
            table.add_row(
                Name(f"perplexity of {name}"), f"{each.perplexity:.4f} +- {each.error:.4f}"
            )
    if (difference := found.difference) is not None:
        table.add_row("KL divergence, mean", f"{difference.mean_kl:.3e} nats per token")
        table.add_row("median, 99 %, largest", ", ".join(
            f"{value:.3e}"
            for value in (difference.median_kl, difference.kl_99, difference.largest_kl)
        ))  # fmt: skip
        table.add_row("same most likely token", f"{difference.agreement:.2%}")
        if difference.not_finite:
            table.add_row("NaN or infinite, left out", f"{difference.not_finite:.2%}")
    table_console(wide=wide).print(titled(title, table))
