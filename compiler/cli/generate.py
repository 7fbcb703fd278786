"""`mxc generate`: continues a prompt and prints the text as it is generated."""

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
from mxc.compiler.cli.terminal import Wide, visible
from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.artifact.manifest import ModelRecord
    from mxc.runtime.completions.stream import AnswerStream
    from mxc.runtime.session import Model
    from mxc.runtime.text import Text

#: Default number of new tokens, if as many fit.
DEFAULT_NEW_TOKENS = 256


@dataclass(kw_only=True)
class GenerationOutcome:
    """The result of a generation. Times in seconds; `text` is None without a tokenizer."""

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
    wide: Wide = False,
) -> None:
    """Generate text. Tokens are printed as they come.

    Example: mxc generate gpt-oss-20b.mxc --prompt "Why is the sky blue?"
    """
    from mxc.runtime.completions.opened import open_engine
    from mxc.runtime.completions.text_model import Prompt, TextModel
    from mxc.runtime.completions.token_stream import start_tokens
    from mxc.runtime.engine.request import Sampling
    from mxc.runtime.engine.schedule import StepLimits
    from mxc.runtime.paged_steps import language_model
    from mxc.runtime.sampling import Sampler

    if (prompt is None) == (prompt_tokens is None):
        raise RequestError("give either --prompt TEXT or --prompt-tokens 1,2,3")
    # Errors that do not depend on the model are raised before it is loaded.
    watched = Observation(trace=trace, wave=wave, count=count, sanitize=sanitize)
    Sampler(temperature, top_k, top_p, min_p, seed)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
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
    record = language_model(model)
    most = _fitting(record, len(ids), max_new_tokens)
    engine = open_engine(model, limits=StepLimits(tokens=record.rows, sequences=1))
    try:
        if text is None:
            stream = start_tokens(engine, ids, most, sampling=sampling, ends=record.eos_tokens)
        else:
            stream = TextModel(engine, text, record.eos_tokens).start(
                Prompt(tuple(ids)),
                max_tokens=most,
                sampling=sampling,
                stop=stop or (),
                special=special,
            )
        outcome = _print_answer(stream, ids, has_text=text is not None, show=not json)
    finally:
        # also after an interrupt no thread keeps computing
        engine.close()
    outcome.timings = {"load_seconds": loaded, **outcome.timings}
    watched.close()
    if json:
        seen = {"simulator": watched.to_dict()} if watched.wanted else {}
        print(json_text.dumps({**vars(outcome), **seen}))
    else:
        watched.show(wide=wide)
    watched.refuse_findings()


def _ids(listed: str) -> list[int]:
    try:
        return [int(part) for part in listed.split(",")]
    except ValueError:
        raise RequestError(
            f"--prompt-tokens wants numbers with commas between them, got {listed!r}"
        ) from None


def _text(model: Model, *, wanted: bool) -> Text | None:
    """Return the tokenizer; None if it is missing and not needed."""
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


def _fitting(record: ModelRecord, prompt: int, asked: int | None) -> int:
    """Return the number of tokens to generate. Raises RequestError if they do not fit."""
    # The last token is never fed to the model, so a full sequence still yields one more.
    fits = record.max_sequence_length - prompt + 1
    count = min(DEFAULT_NEW_TOKENS, fits) if asked is None else asked
    if fits < 1 or count > fits:
        new = "" if asked is None else f" and {asked} new ones"
        raise RequestError(
            f"a prompt of {prompt} tokens{new} is longer than the "
            f"{record.max_sequence_length} that the artifact holds; shorten it, or compile with a "
            "larger --max-sequence-length"
        )
    return count


def _print_answer(
    stream: AnswerStream, prompt: list[int], *, has_text: bool, show: bool
) -> GenerationOutcome:
    """Read an answer to its end and print it as it comes; as token ids if `has_text` is not set."""
    terminal = sys.stdout.isatty()
    for piece in stream:
        shown = piece.text
        if not has_text and piece.drawn is not None:
            shown = f"{piece.drawn.token} "
        if show and shown:
            print(visible(shown) if terminal else shown, end="", flush=True)
    if show:
        print()
    answer = stream.completion
    outcome = answer.outcome
    assert outcome is not None  # set when the stream has ended
    first = outcome.first_token or outcome.ended
    return GenerationOutcome(
        prompt_tokens=prompt,
        tokens=answer.tokens,
        text=answer.text if has_text else None,
        finish_reason=outcome.reason,
        timings=_timings(
            first - outcome.submitted, outcome.ended - first, len(prompt), len(answer.tokens) - 1
        ),
    )


def _timings(prompt: float, rest: float, fed: int, drawn: int) -> dict[str, Any]:
    """Return seconds to the first token and from it to the last; a rate without tokens is None."""
    return {
        "prompt_seconds": prompt,
        "generate_seconds": rest,
        "prompt_tokens_per_second": fed / prompt if prompt else None,
        "generate_tokens_per_second": drawn / rest if drawn and rest else None,
    }
