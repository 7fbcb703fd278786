"""The endpoint /v1/chat/completions: answers to chats."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxc.runtime.completions.deltas import ARGUMENTS, CALL, CONTENT, REASONING, Delta
from mxc.runtime.completions.stream import AnswerStream, Completion
from mxc.runtime.engine.request import SampledToken
from mxc.server.answers import DONE, EventStream, event, merged, whole
from mxc.server.bodies import read_fields
from mxc.server.errors import bad
from mxc.server.fields import HARMLESS, RequestFields
from mxc.server.messages import read_messages
from mxc.server.options import read_format, read_sampling, read_tools
from mxc.server.prompts import AnswerOptions, chat_prompt, start
from mxc.server.served import Served, ServedModel
from mxc.server.usage import usage

#: Variables of a template that a request may not set.
_RESERVED = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True)
class _Shape:
    """The parts of a response besides its text.

    `head`: the fields that all chunks share. `logprobs`: whether they are listed. `usage`: whether
    a stream ends with usage.
    """

    head: dict[str, Any]
    logprobs: bool
    usage: bool
    prompt_tokens: int


async def answer(request: Request, shared: Served) -> Response:
    """Answer one request."""
    fields = await read_fields(request, shared.settings)
    served = shared.read_model(fields)
    template = served.model.text.template or ""
    messages = read_messages(fields.items("messages"), knows_developer="developer" in template)
    tools = read_tools(fields, flat=False)
    variables = read_variables(fields)
    if tools.given:
        variables["tools"] = list(tools.given)
    constraint = read_format(fields.object("response_format"), flat=False)
    if tools.wanted:
        if constraint is not None:
            raise bad("response_format cannot be combined with a tool that is required")
        constraint = require_calls(served, tools.wanted)
    most = fields.whole("max_completion_tokens", 1, None, fields.whole("max_tokens", 1, None, None))
    logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, 20, None)
    if top is not None and not logprobs:
        raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
    asked = AnswerOptions(
        sampling=replace(read_sampling(fields), top_logprobs=(top or 0) if logprobs else None),
        max_tokens=most,
        stop=fields.strings("stop", 4),
        choices=fields.whole("n", 1, shared.settings.choices, 1) or 1,
        tools=bool(tools.given),
        one_call=not fields.flag("parallel_tool_calls", True),
        constraint=constraint,
    )
    streaming, with_usage = read_stream(fields)
    fields.only("modalities", ["text"], "answers are text")
    fields.done(HARMLESS)
    prompt = await chat_prompt(served, messages, variables)
    streams = await start(shared, served, [prompt], asked)
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": served.name,
    }
    shape = _Shape(head, logprobs, with_usage, len(prompt.tokens))
    seconds = shared.settings.request_seconds
    if streaming:
        return EventStream(_events(streams, served, shape), streams, seconds)
    answers = await whole(request, streams, seconds)
    choices = [_choice(index, each, served, shape) for index, each in enumerate(answers)]
    return JSONResponse({**head, "choices": choices, "usage": usage(shape.prompt_tokens, answers)})


def require_calls(served: ServedModel, wanted: Sequence[Any]) -> Any:
    """Return the constraint of an answer that must call one of the `wanted` tools.

    Raises ApiError where the model has no format for calls.
    """
    from mxc.runtime.completions.constraints import Constraint

    if not served.model.dialect.calls:
        raise bad(f"the model {served.name} has no format for tool calls", "tool_choice")
    return Constraint(tools=tuple(wanted))


def read_variables(fields: RequestFields) -> dict[str, Any]:
    """Read the variables of the chat template besides the messages."""
    variables: dict[str, Any] = {}
    given = fields.any("chat_template_kwargs", {})
    if not isinstance(given, dict) or set(given) & set(_RESERVED):
        name = fields.name("chat_template_kwargs")
        raise bad(f"{name} must be an object without {', '.join(_RESERVED)}", name)
    variables.update(given)
    effort = fields.text("reasoning_effort")
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables


def read_stream(fields: RequestFields) -> tuple[bool, bool]:
    """Read whether to stream, and whether to send usage at the end of the stream."""
    streaming = fields.flag("stream")
    options = fields.object("stream_options")
    if options is None:
        return streaming, False
    if not streaming:
        raise bad("stream_options needs stream to be true", "stream_options")
    with_usage = options.flag("include_usage")
    options.flag("include_obfuscation")
    options.done()
    return streaming, with_usage


def finish_reason(completion: Completion) -> str:
    """Return OpenAI's finish_reason of an answer."""
    if completion.tool_calls and completion.finish_reason == "stop":
        return "tool_calls"
    return completion.finish_reason or "stop"


def call_id() -> str:
    """Return a new id for a call."""
    return f"call_{secrets.token_hex(12)}"


def _choice(
    index: int, completion: Completion, served: ServedModel, shape: _Shape
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": completion.text, "refusal": None}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        message["content"] = completion.text or None
        message["tool_calls"] = [
            {
                "id": call_id(),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in completion.tool_calls
        ]
    kinds = zip(completion.drawn, completion.kinds, strict=True)
    content = [drawn for drawn, kind in kinds if kind == CONTENT]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(content, served) if shape.logprobs else None,
        "finish_reason": finish_reason(completion),
    }


def _logprobs(drawn: Sequence[SampledToken], served: ServedModel) -> dict[str, Any]:
    return {"content": [token_logprob(each, served) for each in drawn], "refusal": None}


def token_logprob(drawn: SampledToken, served: ServedModel) -> dict[str, Any]:
    """Return OpenAI's record of a token: its log-probability, and the likeliest tokens."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = served.token_bytes(token)
        text = data.decode(errors="replace")
        # JSON has no infinity: -9999 stands for a probability of 0.
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(data)}

    top = [entry(*each) for each in drawn.top]
    return {**entry(drawn.token, drawn.logprob or 0.0), "top_logprobs": top}


async def _events(
    streams: Sequence[AnswerStream], served: ServedModel, shape: _Shape
) -> AsyncGenerator[bytes]:
    head = {**shape.head, "object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        nothing = {"usage": None} if shape.usage else {}
        return event({**head, "choices": [choice], **nothing})

    for index in range(len(streams)):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for index, piece in merged(streams):
        if piece is None:
            yield chunk(index, {}, finish_reason=finish_reason(streams[index].completion))
            continue
        more: dict[str, Any] = {}
        if shape.logprobs and piece.kind == CONTENT and piece.drawn is not None:
            more = {"logprobs": _logprobs([piece.drawn], served)}
        deltas = [_delta(delta) for delta in piece.deltas] or ([{}] if more else [])
        for number, delta in enumerate(deltas):
            yield chunk(index, delta, **(more if number == 0 else {}))
    if shape.usage:
        totals = usage(shape.prompt_tokens, [stream.completion for stream in streams])
        yield event({**head, "choices": [], "usage": totals})
    yield DONE


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.kind == REASONING:
        return {"reasoning_content": delta.text}
    if delta.kind == CALL:
        function = {"name": delta.text, "arguments": ""}
        call = {"index": delta.call, "id": call_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}
    if delta.kind == ARGUMENTS:
        return {"tool_calls": [{"index": delta.call, "function": {"arguments": delta.text}}]}
    return {"content": delta.text}
