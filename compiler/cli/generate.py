"""`mxc generate`: a prompt in, text as it is drawn."""

from __future__ import annotations

import json as json_text
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxc.artifact.manifest import TOKENIZER
from mxc.compiler.cli.observation import Count, Observation, Sanitize, TraceFile, Wave
from mxc.compiler.cli.placement import DeviceOrSimulator, Level, Threads
from mxc.compiler.cli.terminal import visible
from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.runtime.sampling import Sampler
    from mxc.runtime.session import Model
    from mxc.runtime.text import Text

#: New tokens where the caller names no number, or as many as fit.
DEFAULT_NEW_TOKENS = 256


@dataclass(kw_only=True)
class Outcome:
    """What was generated. Times in seconds; `text` is None without a tokenizer."""

    prompt_tokens: list[int]
    tokens: list[int]
    text: str | None
    finish_reason: str
    timings: dict[str, float]


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled model.", show_default=False)],
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Text to continue. Where the artifact has a chat template this is a message "
            "of the user, and the model answers it; --raw continues it as it stands."
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(metavar="ID,ID,...", help="Token ids to continue.")
    ] = None,
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw/--chat",
            help="Leave the chat template aside, or insist on it.",
            show_default="--chat where there is a template",
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="System message before the prompt (chat only).")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many.", show_default=f"{DEFAULT_NEW_TOKENS}, or what fits"
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely token; 1 is the model's own.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the likeliest tokens of this total probability.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Keep tokens at least this many times as likely as the likeliest."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given again.")
    ] = None,
    special: Annotated[bool, typer.Option("--special", help="Print special tokens too.")] = False,
    threads: Threads = None,
    device: DeviceOrSimulator = None,
    level: Level = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one object at the end: prompt_tokens, tokens, text, finish_reason "
            "(stop or length), timings (seconds), and simulator where that is watched.",
        ),
    ] = False,
    trace: TraceFile = None,
    wave: Wave = None,
    count: Count = False,
    sanitize: Sanitize = False,
) -> None:
    """Generate text. Tokens are printed as they come.

    Example: mxc generate gpt-oss-20b.mxc --prompt "Why is the sky blue?"
    """
    from mxc.runtime.sampling import Sampler

    if (prompt is None) == (prompt_tokens is None):
        raise RequestError("give either --prompt TEXT or --prompt-tokens 1,2,3")
    # What can be refused without the model is refused before it is loaded.
    watched = Observation(trace=trace, wave=wave, count=count, sanitize=sanitize)
    sampler = Sampler(temperature, top_k, top_p, min_p, seed)
    ids = None if prompt_tokens is None else _ids(prompt_tokens)
    started = time.perf_counter()
    model = watched.load(artifact, device=device, threads=threads, level=level)
    loaded = time.perf_counter() - started
    text = _text(model, wanted=prompt is not None or bool(stop))
    if ids is None:
        assert text is not None
        assert prompt is not None
        ids = _encode(text, prompt, system, raw)
        if not ids:
            raise RequestError("--prompt is empty, and without a chat there is nothing to continue")
    elif system is not None or raw is False:
        option = "--chat" if system is None else "--system"
        raise RequestError(f"{option} is for --prompt; put it into --prompt-tokens yourself")
    outcome = _generate(
        model, text, ids, sampler, max_new_tokens, stop or [], special=special, show=not json
    )
    outcome.timings = {"load_seconds": loaded, **outcome.timings}
    watched.close()
    if json:
        seen = {"simulator": watched.to_dict()} if watched.wanted else {}
        print(json_text.dumps({**vars(outcome), **seen}))
    else:
        watched.show()
    watched.refuse_findings()


def _ids(listed: str) -> list[int]:
    try:
        return [int(part) for part in listed.split(",")]
    except ValueError:
        raise RequestError(
            f"--prompt-tokens wants numbers with commas between them, got {listed!r}"
        ) from None


def _text(model: Model, *, wanted: bool) -> Text | None:
    """The tokenizer; without one, tokens can only be numbers."""
    from mxc.runtime.text import Text

    if not wanted and not (model.path / TOKENIZER).is_file():
        return None
    return Text.load(model.path)


def _encode(text: Text, prompt: str, system: str | None, raw: bool | None) -> list[int]:
    chat = text.has_chat_template if raw is None else not raw
    if not chat:
        if system is not None:
            raise RequestError(
                "--system needs a chat template, which the artifact does not have"
                if raw is None
                else "--system cannot be used with --raw"
            )
        return text.encode(prompt)
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return text.encode(text.chat(messages), add_special_tokens=False)


def _generate(
    model: Model,
    text: Text | None,
    prompt: list[int],
    sampler: Sampler,
    max_new_tokens: int | None,
    stop: list[str],
    *,
    special: bool,
    show: bool,
) -> Outcome:
    from mxc.runtime.generation import generate
    from mxc.runtime.text import StopStrings

    record = model.manifest.model
    if max_new_tokens is None and record is not None:
        fits = record.max_sequence_length - len(prompt) + 1
        max_new_tokens = DEFAULT_NEW_TOKENS if fits >= DEFAULT_NEW_TOKENS else None
    decoder = None if text is None else text.decoder(skip_special_tokens=not special)
    guard = StopStrings(stop)
    tokens: list[int] = []
    pieces: list[str] = []
    terminal = sys.stdout.isatty()

    def give(piece: str) -> None:
        pieces.append(piece)
        if show:
            print(visible(piece) if terminal else piece, end="", flush=True)

    started = first = time.perf_counter()
    for token in generate(model, prompt, sampler, max_new_tokens):
        if not tokens:
            first = time.perf_counter()
        tokens.append(token)
        if decoder is None:
            give(f"{token} ")
        else:
            give(guard.push(decoder.push(token)))
            if guard.found is not None:
                break
    if decoder is not None:
        give(guard.push(decoder.finish()) + guard.finish())
    ended = time.perf_counter()
    if show:
        print()
    ends = record.eos_tokens if record is not None else ()
    stopped = guard.found is not None or tokens[-1] in ends
    return Outcome(
        prompt_tokens=prompt,
        tokens=tokens,
        text=None if decoder is None else "".join(pieces),
        finish_reason="stop" if stopped else "length",
        timings=_timings(first - started, ended - first, len(prompt), len(tokens) - 1),
    )


def _timings(prompt: float, rest: float, fed: int, drawn: int) -> dict[str, Any]:
    """Seconds to the first token and from there to the last; rates are null for no token."""
    return {
        "prompt_seconds": prompt,
        "generate_seconds": rest,
        "prompt_tokens_per_second": fed / prompt if prompt else None,
        "generate_tokens_per_second": drawn / rest if drawn and rest else None,
    }
