"""The endpoint /v1/responses of OpenAI's newer API. Nothing is stored between requests."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxc.server.answers import EventStream, whole
from mxc.server.bodies import read_fields
from mxc.server.chat import read_variables, require_calls
from mxc.server.errors import bad
from mxc.server.fields import HARMLESS, RequestFields
from mxc.server.messages import call_message, content_text
from mxc.server.options import read_format, read_sampling, read_tools
from mxc.server.prompts import AnswerOptions, chat_prompt, start
from mxc.server.response_events import ResponseEvents
from mxc.server.response_items import completed, output_items
from mxc.server.served import Served

#: What `include` may name: reasoning, which is always there in plain text, and details of items
#: that no answer has.
_INCLUDED = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
)


async def answer(request: Request, shared: Served) -> Response:
    """Answer one request."""
    fields = await read_fields(request, shared.settings)
    served = shared.read_model(fields)
    developer = "developer" in (served.model.text.template or "")
    echoed = _echoed(fields)
    messages = _messages(fields, echoed["instructions"], knows_developer=developer)
    tools = read_tools(fields, flat=True)
    variables = read_variables(fields)
    reasoning = fields.object("reasoning")
    if reasoning is not None:
        effort = reasoning.text("effort")
        if effort is not None:
            variables["reasoning_effort"] = effort
        reasoning.done(("summary", "generate_summary"))
    if tools.given:
        variables["tools"] = list(tools.given)
    text = fields.object("text")
    constraint = None
    if text is not None:
        constraint = read_format(text.object("format"), flat=True)
        text.done(("verbosity",))
    if tools.wanted:
        if constraint is not None:
            raise bad("text.format cannot be combined with a tool that is required", "text.format")
        constraint = require_calls(served, tools.wanted)
    asked = AnswerOptions(
        sampling=replace(read_sampling(fields)),
        max_tokens=fields.whole("max_output_tokens", 1, None, None),
        tools=bool(tools.given),
        one_call=not echoed["parallel_tool_calls"],
        constraint=constraint,
    )
    streaming = fields.flag("stream")
    options = fields.object("stream_options")
    if options is not None:
        options.done(("include_obfuscation",))
    fields.only("previous_response_id", None, "nothing is stored; give the whole conversation")
    fields.only("conversation", None, "nothing is stored; give the whole conversation")
    fields.only("background", False, "nothing is stored")
    fields.only("truncation", "disabled", "no part of a conversation is dropped")
    for index, each in enumerate(fields.items("include")):
        if each not in _INCLUDED:
            raise bad(f"include[{index}] is not supported", "include", "unsupported")
    fields.done((*HARMLESS, "max_tool_calls"))
    prompt = await chat_prompt(served, messages, variables)
    streams = await start(shared, served, [prompt], asked)
    body = {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "max_output_tokens": asked.max_tokens,
        "model": served.name,
        "output": [],
        "temperature": asked.sampling.temperature,
        "tool_choice": tools.choice,
        "tools": [{"type": "function", "strict": None, **e["function"]} for e in tools.listed],
        "top_p": asked.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        **echoed,
    }
    count, seconds = len(prompt.tokens), shared.settings.request_seconds
    if streaming:
        events = ResponseEvents(body, count).events(streams[0])
        return EventStream(events, streams, seconds)
    (found,) = await whole(request, streams, seconds)
    return JSONResponse(completed(body, output_items(found), found, count))


def _echoed(fields: RequestFields) -> dict[str, Any]:
    """Read the fields that the response repeats as they are."""
    metadata = fields.any("metadata", {})
    if not isinstance(metadata, dict):
        raise bad("metadata must be an object", "metadata")
    return {
        "instructions": fields.text("instructions"),
        "metadata": metadata,
        "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
    }


def _messages(
    fields: RequestFields, instructions: str | None, *, knows_developer: bool
) -> list[dict[str, Any]]:
    """Return the instructions and `input` as messages of a chat."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    given = fields.required("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad("input must be a string or a list of items", "input")
    for index, each in enumerate(given):
        _add(messages, RequestFields(each, f"input[{index}]."), knows_developer)
    return messages


def _add(messages: list[dict[str, Any]], item: RequestFields, knows_developer: bool) -> None:
    kind = item.text("type", "message")
    if kind == "message":
        role = item.choice("role", ("system", "developer", "user", "assistant"), None)
        if role is None:
            raise bad(f"missing required parameter: {item.name('role')}", item.name("role"))
        role = "system" if role == "developer" and not knows_developer else role
        text = content_text(item.required("content"), item.name("content"))
        _say(messages, role, content=text)
    elif kind == "function_call":
        name, arguments = item.required("name"), item.text("arguments", "{}")
        call = call_message(str(name), arguments or "{}", item.text("call_id"))
        _say(messages, "assistant", tool_calls=[call])
    elif kind == "function_call_output":
        output = content_text(item.required("output"), item.name("output"))
        called = item.text("call_id") or ""
        messages.append({"role": "tool", "content": output, "tool_call_id": called})
    elif kind == "reasoning":
        parts = [RequestFields(each, item.name("content[].")) for each in item.items("content")]
        text = "".join(part.text("text") or "" for part in parts)
        _say(messages, "assistant", thinking=text, reasoning_content=text)
    else:
        raise bad(f"{item.name('type')} is not supported", item.name("type"), "unsupported")


def _say(messages: list[dict[str, Any]], role: str, **said: Any) -> None:
    """Add a message; consecutive items of the assistant are merged into one message."""
    last = messages[-1] if messages else {}
    if role == "assistant" and last.get("role") == "assistant" and not set(said) & _set(last):
        last.update(said)
        return
    if role == "assistant" and "tool_calls" in said and last.get("tool_calls"):
        last["tool_calls"] += said["tool_calls"]
        return
    messages.append({"role": role, "content": "", **said})


def _set(message: dict[str, Any]) -> set[str]:
    """Return the keys of a message that have a value."""
    return {key for key, value in message.items() if value}
