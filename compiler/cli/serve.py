"""`mxc serve`: serves artifacts over HTTP with OpenAI's API."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mxc.compiler.cli.loading import load_model
from mxc.compiler.cli.placement import Device, Level, Threads
from mxc.errors import RequestError

_KEY = "MXC_API_KEY"
#: Packages that only `mxc serve` needs.
_EXTRA = ("starlette", "uvicorn", "prometheus_client")


def command(
    artifacts: Annotated[list[Path], typer.Argument(help="Compiled models.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="What requests call the model; once for each artifact.",
            show_default="the name of its folder",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=_KEY,
            help="Wanted in each request; may be given several times. In the environment it is "
            "not seen by other users of the machine; an empty variable is no key.",
            show_default="nobody is asked",
        ),
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Requests that run together.")] = 64,
    step_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a step, of prompts and answers together.")
    ] = 512,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; more are told to come again.")
    ] = 256,
    max_body: Annotated[float, typer.Option(min=0.001, help="MiB of a request.")] = 8.0,
    max_prompt: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a prompt.", show_default="what fits")
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until an answer must have ended.")
    ] = 600.0,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that answers may take after SIGTERM.")
    ] = 30.0,
    threads: Threads = None,
    device: Device = None,
    level: Level = None,
) -> None:
    """Serve models: chats, completions and responses of OpenAI's API, and a page to chat on.

    Example: mxc serve gpt-oss-20b.mxc --port 8000
    """
    missing = [each for each in _EXTRA if find_spec(each) is None]
    if missing:
        raise RequestError(f"mxc serve needs {', '.join(missing)}; pip install 'mxc[serve]'")
    from mxc.runtime.completions.opened import open_text_model
    from mxc.runtime.engine.schedule import StepLimits
    from mxc.server.run import listen, serve
    from mxc.server.settings import Settings

    names = name or [_name(path) for path in artifacts]
    if len(names) != len(artifacts) or len(set(names)) != len(names):
        raise RequestError(
            f"{len(artifacts)} artifacts are called {', '.join(names)}; "
            "give each a name of its own with --name"
        )
    if not all(called.strip() for called in names):
        raise RequestError("the name of a model must not be empty; give another --name")
    if not api_key and os.environ.get(_KEY):
        raise RequestError(f"{_KEY} has whitespace alone; set it to a key, or to nothing")
    settings = Settings(
        api_keys=tuple(api_key or ()),
        body_bytes=int(max_body * (1 << 20)),
        prompt_tokens=max_prompt,
        request_seconds=request_timeout,
        drain_seconds=drain,
    )
    listener = listen(host, port)
    limits = StepLimits(tokens=step_tokens, sequences=sequences)
    models = {
        called: open_text_model(
            load_model(path, device=device, threads=threads, level=level),
            limits=limits,
            queue=queue,
        )
        for called, path in zip(names, artifacts, strict=True)
    }
    place = f"[{host}]" if ":" in host else host

    def ready() -> None:
        typer.echo(
            f"serving {', '.join(models)} at http://{place}:{listener.getsockname()[1]}", err=True
        )

    serve(models, settings, listener, ready)


def _name(path: Path) -> str:
    return path.resolve().name.removesuffix(".mxc")
