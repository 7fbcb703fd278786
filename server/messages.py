"""Converts messages of OpenAI's chats to the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mxc.server.errors import bad
from mxc.server.fields import RequestFields

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def read_messages(given: Sequence[Any], *, knows_developer: bool) -> list[dict[str, Any]]:
    """Check `messages` and convert them to one form.

    Content becomes text, and arguments of calls become objects where they are JSON. Where the
    template does not know the role "developer", its messages get the role "system". Raises ApiError
    for malformed messages.
    """
    if not given:
        raise bad("messages must have at least one message", "messages")
    return [
        _message(RequestFields(each, f"messages[{index}]."), knows_developer)
        for index, each in enumerate(given)
    ]


def _message(fields: RequestFields, knows_developer: bool) -> dict[str, Any]:
    role = fields.choice("role", _ROLES, None)
    if role is None:
        raise bad(f"missing required parameter: {fields.name('role')}", fields.name("role"))
    message: dict[str, Any] = {"role": "tool" if role == "function" else role}
    if role == "developer" and not knows_developer:
        message["role"] = "system"
    content = fields.any("content")
    calls = fields.items("tool_calls")
    if content is None and role != "assistant":
        raise bad(f"missing required parameter: {fields.name('content')}", fields.name("content"))
    message["content"] = "" if content is None else content_text(content, fields.name("content"))
    for key in ("name", "tool_call_id"):
        value = fields.text(key)
        if value is not None:
            message[key] = value
    reasoning = fields.text("reasoning_content", fields.text("reasoning"))
    if reasoning is not None and role == "assistant":
        # The key that templates of Qwen and DeepSeek read, and the key of gpt-oss.
        message["reasoning_content"] = message["thinking"] = reasoning
    if calls:
        message["tool_calls"] = [
            _call(RequestFields(each, f"{fields.name('tool_calls')}[{index}]."))
            for index, each in enumerate(calls)
        ]
    fields.done(("refusal", "audio", "annotations", "function_call"))
    return message


def content_text(content: Any, name: str) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{name} must be a string or a list of parts", name)
    pieces = []
    for index, each in enumerate(content):
        part = RequestFields(each, f"{name}[{index}].")
        kind = part.required("type")
        if kind not in _TEXT_PARTS:
            raise bad(
                f"{part.name('type')}: this model reads text alone",
                part.name("type"),
                "unsupported",
            )
        text = part.text("refusal" if kind == "refusal" else "text")
        if text is None:
            raise bad(f"missing required parameter: {part.name('text')}", part.name("text"))
        pieces.append(text)
    return "".join(pieces)


def _call(fields: RequestFields) -> dict[str, Any]:
    function = RequestFields(fields.required("function"), fields.name("function."))
    name, arguments = function.required("name"), function.text("arguments", "{}")
    if not isinstance(name, str):
        raise bad(f"{function.name('name')} must be a string", function.name("name"))
    return call_message(name, arguments or "{}", fields.text("id"))


def call_message(name: str, arguments: str, identifier: str | None) -> dict[str, Any]:
    """Return a call as templates expect it: arguments as an object where they are JSON."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = arguments
    function = {"name": name, "arguments": parsed}
    return {"id": identifier or "", "type": "function", "function": function}
