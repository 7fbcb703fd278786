"""`mxc run`: call one function of an artifact with .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxc.compiler.cli.observation import Count, Observation, Sanitize, TraceFile, Wave
from mxc.compiler.cli.placement import DeviceOrSimulator, Level, Threads
from mxc.compiler.cli.terminal import Wide
from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.artifact.manifest import TensorType


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled program.", show_default=False)],
    function: Annotated[str, typer.Option(help="The function to call.")] = "main",
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="One argument: a .npy file, or a number where the function takes one. "
            "Give it once for each argument, in order."
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            help="The .npy file for one result; once for each, in order. "
            "Without it results are described."
        ),
    ] = None,
    unpack: Annotated[
        list[str] | None,
        typer.Option(
            help="A result of packed elements as float32: RESULT=FORMAT, or RESULT=FORMAT:SCALES "
            "to multiply with the scales in another result, as 0=mxfp4:1.",
            metavar="<spec>",
        ),
    ] = None,
    threads: Threads = None,
    device: DeviceOrSimulator = None,
    level: Level = None,
    trace: TraceFile = None,
    wave: Wave = None,
    count: Count = False,
    sanitize: Sanitize = False,
    wide: Wide = False,
) -> None:
    """Call a function.

    Example: mxc run matmul.mxc --input x.npy --input w.npy --output y.npy

    .npy has no name for bf16 and f8: such files hold their bits, as items of two bytes or one
    (the dtypes V2 and V1 that numpy writes for ml_dtypes arrays, or unsigned integers).
    """
    import numpy as np

    from mxc.compiler.cli.unpacked import unpacked

    watched = Observation(trace=trace, wave=wave, count=count, sanitize=sanitize)
    model = watched.load(artifact, device=device, threads=threads, level=level)
    types = model.functions[function].inputs if function in model.functions else ()
    values = [
        argument(text, types[index] if index < len(types) else None)
        for index, text in enumerate(input or [])
    ]
    files = output or []
    if function in model.functions and files:
        wanted = len(model.functions[function].outputs)
        if len(files) != wanted:
            raise RequestError(
                f"{function} has {wanted} results, --output was given {len(files)} times"
            )
    results = unpacked(model.call(function, *values), unpack or [])
    for file, result in zip(files, results, strict=False):
        try:
            with file.open("wb") as stream:
                np.save(stream, result, allow_pickle=False)
        except OSError as error:
            raise RequestError(f"{file}: cannot be written ({error.strerror})") from error
    if not files:
        for index, result in enumerate(results):
            print(f"result {index}: {result.dtype} {list(result.shape)}\n{result}")
    watched.close()
    watched.show(wide=wide)
    watched.refuse_findings()


def argument(text: str, wanted: TensorType | None) -> Any:
    """Return the value of one --input; types that .npy cannot name are taken from their bits."""

    from mxc.runtime.arrays import dtype_of

    if wanted is not None and not wanted.shape and not Path(text).is_file():
        try:
            return float(text) if wanted.dtype.startswith(("f", "bf")) else int(text)
        except ValueError:
            raise RequestError(f"--input {text}: neither a file nor a number") from None
    array = _mapped(text)
    if wanted is not None and wanted.dtype.startswith(("bf16", "f8")):
        dtype = dtype_of(wanted.dtype, text)
        if array.dtype.kind in "Vu" and array.dtype.itemsize == dtype.itemsize:
            return array.view(dtype)
    return array


def _mapped(text: str) -> Any:
    """Return the memory-mapped array of a .npy file; mapping checks the size that its header
    claims."""
    import numpy as np

    try:
        with Path(text).open("rb") as file:
            if file.read(2) == b"PK":
                archive = f"--input {text}: an archive of several arrays; wants one .npy file"
                raise RequestError(archive)
        with np.errstate(over="ignore"):  # in the size that a header claims
            return np.lib.format.open_memmap(text, mode="c")
    except RequestError:
        raise
    except OSError as error:
        raise RequestError(f"--input {text}: cannot be read ({error})") from error
    except Exception as error:  # the header is Python source, whose parser raises various errors
        raise RequestError(f"--input {text}: not a .npy file ({str(error)[:100]})") from error
