"""`mxc verify-gpu`: compares the results of a GPU with the simulator's, and measures its speed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxc.compiler.cli.terminal import Wide, shortened, table_console
from mxc.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from mxc.runtime.verification.verify import FunctionResult, KernelResult


def command(
    artifact: Annotated[
        Path, typer.Argument(help="An artifact for gfx950 or gfx942.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write, and to send back.")
    ] = Path("verify-gpu.json"),
    simulator: Annotated[
        bool, typer.Option("--simulator", help="Simulate the GPU too, to try the command.")
    ] = False,
    device: Annotated[
        int | None,
        typer.Option(help="Which GPU, as HIP counts.", show_default="the first that fits"),
    ] = None,
    function: Annotated[str, typer.Option(help="Of a program, the function to call.")] = "main",
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="One argument of it: a .npy file, or a number. Once for each, in order.",
            show_default="random ones",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a language model, tokens of the prompt.",
            show_default="up to the token that the report estimates",
        ),
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of a kernel.")] = 10,
    wide: Wide = False,
) -> None:
    """Run each kernel of an artifact on a GPU: compare it with the simulator, and time it.

    Example: mxc verify-gpu model.mxc
    """
    from mxc.artifact.manifest import read_manifest
    from mxc.compiler.cli.run import argument
    from mxc.runtime.verification.verify import device_uri, simulated_library, verify

    kinds = read_manifest(artifact).functions
    types = kinds[function].inputs if function in kinds else ()
    given = [
        argument(text, types[n] if n < len(types) else None) for n, text in enumerate(input or [])
    ]
    if not output.absolute().parent.is_dir():
        raise RequestError(f"--output {output}: its folder is not there; make it first")
    found = verify(
        artifact,
        library=simulated_library(artifact) if simulator else None,
        uri=device_uri(simulator, device),
        index=device,
        function=function,
        arguments=given or None,
        tokens=tokens,
        repetitions=repetitions,
        seen=partial(_show, table_console(wide=wide)),
    )
    try:
        output.write_text(found.to_json(), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--output {output}: cannot be written ({error.strerror})") from error
    print(
        f"{found.device} ({found.architecture}): {len(found.kernels)} kernels and "
        f"{len(found.functions)} calls, {found.wrong} beyond their bounds; wrote {output}"
    )
    if found.failure is not None:
        raise RequestError(f"{artifact}: it ended early, which {output} says too: {found.failure}")
    if found.wrong:
        raise typer.Exit(1)


def _show(console: Console, result: KernelResult | FunctionResult) -> None:
    """Print one line for a result that was compared and timed."""
    verdict = f"{'ok' if result.agrees else 'WRONG':5} "
    line = f": error {result.error:.2g} of {result.bound:.2g}, {1e6 * result.seconds:.1f} us"
    model = getattr(result, "model_seconds", None)
    if model:
        line += f", {1e6 * model:.1f} us estimated"
    name = shortened(result.name, console.width - len(verdict) - len(line))
    print(f"{verdict}{name}{line}", flush=True)
