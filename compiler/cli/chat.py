"""`mxc chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxc.compiler.cli.loading import load_model
from mxc.compiler.cli.placement import Device, Level, Threads
from mxc.compiler.cli.terminal import visible
from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.runtime.completions.text_model import TextModel
    from mxc.runtime.engine.request import Sampling

_HELP = """\
/reset       forget the conversation
/save FILE   write it as JSON
/exit        leave; so does Ctrl-D
Ctrl-C stops an answer."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled model.", show_default=False)],
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer.", show_default="what fits")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely token; 1 is the model's own.")
    ] = 1.0,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the likeliest tokens of this total probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    threads: Threads = None,
    device: Device = None,
    level: Level = None,
) -> None:
    """Talk with a model. /help lists what may be typed beside messages.

    Example: mxc chat gpt-oss-20b.mxc
    """
    from mxc.runtime.completions.opened import open_text_model
    from mxc.runtime.engine.request import Sampling

    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    model = open_text_model(load_model(artifact, device=device, threads=threads, level=level))
    if not model.text.has_chat_template:
        raise RequestError(f"{artifact}: has no chat template; use mxc generate --raw")
    terminal = sys.stdin.isatty()
    if terminal:
        import_module("readline")  # gives input() line editing and history
    chat = Conversation(model, sampling, system, max_new_tokens, dim=sys.stdout.isatty())
    try:
        chat.run(lambda: input("> " if terminal else ""))
    finally:
        model.close()


class Conversation:
    """A conversation: its messages, and the handling of input lines."""

    def __init__(
        self,
        model: TextModel,
        sampling: Sampling,
        system: str | None = None,
        max_new_tokens: int | None = None,
        *,
        dim: bool = False,
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Start the conversation.

        `dim`: print reasoning and figures faintly. `show` prints text, by default to standard
        output.
        """
        self._model = model
        self._sampling = sampling
        self._system = system
        self._max_new_tokens = max_new_tokens
        self._dim = dim
        self._show = show or (lambda text: print(text, end="", flush=True))
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = (
            [] if self._system is None else [{"role": "system", "content": self._system}]
        )

    def run(self, read: Callable[[], str]) -> None:
        """Read and handle lines until `read` raises EOFError."""
        while True:
            try:
                line = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._show("\n")  # ends the line that was typed
                continue
            if line in ("/exit", "/quit"):
                return
            if line:
                try:
                    self.take(line)
                except (RequestError, OSError) as error:
                    self._show(f"error: {error}\n")
                except KeyboardInterrupt:
                    self._show("\n[stopped]\n")

    def take(self, line: str) -> None:
        """Handle a command or a message. Raises RequestError if the model cannot answer."""
        if not line.startswith("/"):
            self._answer(line)
        elif line == "/reset":
            self.reset()
        elif line == "/help":
            self._show(_HELP + "\n")
        elif line.startswith("/save "):
            file = Path(line.removeprefix("/save ").strip())
            file.write_text(json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n")
            self._show(f"{len(self.messages)} messages in {file}\n")
        else:
            self._show(f"{line.split()[0]} is no command\n{_HELP}\n")

    def _answer(self, said: str) -> None:
        messages = [*self.messages, {"role": "user", "content": said}]
        prompt = self._model.chat(messages)
        started = time.perf_counter()
        first: float | None = None
        faint = False
        stream = self._model.start(prompt, max_tokens=self._max_new_tokens, sampling=self._sampling)
        with stream:
            try:
                for piece in stream:
                    first = first or time.perf_counter()
                    for delta in piece.deltas:
                        if self._dim and (delta.kind != "content") is not faint:
                            faint = not faint
                            self._show(_DIM if faint else _PLAIN)
                        self._show(visible(delta.text))
            except KeyboardInterrupt:
                stream.cancel()
                self._show(" [stopped]")
        count = len(stream.completion.drawn)
        took = time.perf_counter() - (first or started)
        rate = f", {(count - 1) / took:.1f} tokens/s" if count > 1 and took else ""
        figures = f"[{count} tokens, first after {(first or started) - started:.2f} s{rate}]"
        dim, plain = (_DIM, _PLAIN) if self._dim else ("", "")
        self._show(f"{plain}\n{dim}{figures}{plain}\n")
        self.messages = [*messages, {"role": "assistant", "content": stream.completion.text}]
