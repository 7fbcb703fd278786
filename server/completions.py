"""The endpoint /v1/completions: continuations of text or tokens, without a chat template."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxc.runtime.completions.stream import AnswerStream, Completion
from mxc.runtime.completions.text_model import Prompt
from mxc.server.answers import DONE, EventStream, event, merged, whole
from mxc.server.bodies import read_fields
from mxc.server.chat import read_stream
from mxc.server.errors import bad
from mxc.server.fields import HARMLESS
from mxc.server.logprobs import CompletionLogprobs
from mxc.server.options import read_format, read_sampling
from mxc.server.prompts import AnswerOptions, start
from mxc.server.served import Served, ServedModel
from mxc.server.usage import usage

#: Default of max_tokens, as in OpenAI's API.
DEFAULT_TOKENS = 16


@dataclass(frozen=True)
class _Shape:
    """The parts of a response besides the generated text.

    `head`: the fields that all chunks share. `logprobs`: whether they are listed. `usage`: whether
    a stream ends with usage. `echoes`: the text of the prompt that each choice begins with, or "".
    """

    head: dict[str, Any]
    logprobs: bool
    usage: bool
    prompt_tokens: int
    echoes: tuple[str, ...]


async def answer(request: Request, shared: Served) -> Response:
    """Answer one request."""
    fields = await read_fields(request, shared.settings)
    served = shared.read_model(fields)
    given = fields.required("prompt")
    prompts = await asyncio.to_thread(_prompts, given, served, shared.settings.choices)
    choices = fields.whole("n", 1, shared.settings.choices, 1) or 1
    fields.only("best_of", choices, "choices are not ranked")
    fields.only("suffix", None, "models continue text")
    echo = fields.flag("echo")
    top = fields.whole("logprobs", 0, 20, None)
    if echo and top is not None:
        raise bad("echo cannot be combined with logprobs", "echo", "unsupported")
    asked = AnswerOptions(
        sampling=replace(read_sampling(fields), top_logprobs=top),
        max_tokens=fields.whole("max_tokens", 1, None, DEFAULT_TOKENS),
        stop=fields.strings("stop", 4),
        choices=choices,
        constraint=read_format(fields.object("response_format"), flat=False),
        past_end=fields.flag("ignore_eos"),
    )
    streaming, with_usage = read_stream(fields)
    fields.done(HARMLESS)
    streams = await start(shared, served, prompts, asked)
    texts = [_text(prompt, served) if echo else "" for prompt in prompts]
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
    }
    count = sum(len(prompt.tokens) for prompt in prompts)
    echoes = tuple(text for text in texts for _ in range(choices))
    shape = _Shape(head, top is not None, with_usage, count, echoes)
    seconds = shared.settings.request_seconds
    if streaming:
        return EventStream(_events(streams, served, shape), streams, seconds)
    answers = await whole(request, streams, seconds)
    found = [
        {
            "index": index,
            "text": shape.echoes[index] + each.text,
            "logprobs": _logprobs(each, served) if shape.logprobs else None,
            "finish_reason": each.finish_reason,
        }
        for index, each in enumerate(answers)
    ]
    return JSONResponse({**head, "choices": found, "usage": usage(count, answers)})


def _prompts(given: Any, served: ServedModel, most: int) -> list[Prompt]:
    """Read `prompt`: a string, tokens, or a list of either. Raises ApiError for anything else."""
    if isinstance(given, str) or (isinstance(given, list) and given and _is_tokens(given)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise bad("prompt must be a string, token ids, or a list of them", "prompt")
    if len(given) > most:
        raise bad(f"prompt has {len(given)} prompts, this server takes {most}", "prompt")
    prompts = []
    for each in given:
        if isinstance(each, str):
            prompts.append(served.model.plain(each))
        elif isinstance(each, list) and each and _is_tokens(each):
            prompts.append(Prompt(tuple(each)))
        else:
            raise bad("prompt must be a string, token ids, or a list of them", "prompt")
    return prompts


def _is_tokens(given: Sequence[Any]) -> bool:
    return all(isinstance(token, int) and not isinstance(token, bool) for token in given)


def _text(prompt: Prompt, served: ServedModel) -> str:
    text: str = served.model.text.tokenizer.decode(list(prompt.tokens), skip_special_tokens=True)
    return text


def _logprobs(completion: Completion, served: ServedModel) -> dict[str, Any]:
    return CompletionLogprobs(served).take(completion.drawn, len(completion.text))


async def _events(
    streams: Sequence[AnswerStream], served: ServedModel, shape: _Shape
) -> AsyncGenerator[bytes]:
    listed = [CompletionLogprobs(served) for _ in streams]
    said = [0] * len(streams)

    def chunk(index: int, text: str, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, **more}
        nothing = {"usage": None} if shape.usage else {}
        return event({**shape.head, "choices": [choice], **nothing})

    for index, text in enumerate(shape.echoes):
        if text:
            yield chunk(index, text)
    async for index, piece in merged(streams):
        if piece is None:
            yield chunk(index, "", finish_reason=streams[index].completion.finish_reason)
        elif shape.logprobs and piece.drawn is not None:
            said[index] += len(piece.text)
            logprobs = listed[index].take([piece.drawn], said[index])
            yield chunk(index, piece.text, logprobs=logprobs)
        elif piece.text:
            yield chunk(index, piece.text)
    if shape.usage:
        totals = usage(shape.prompt_tokens, [stream.completion for stream in streams])
        yield event({**shape.head, "choices": [], "usage": totals})
    yield DONE
