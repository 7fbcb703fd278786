"""JSON of a response's items (reasoning, message, calls), and of the completed response."""

from __future__ import annotations

import secrets
from typing import Any

from mxc.runtime.completions.stream import Completion
from mxc.server.chat import call_id
from mxc.server.usage import usage


def reasoning_item(text: str, identifier: str | None = None) -> dict[str, Any]:
    """Return the item of a model's reasoning."""
    return {
        "id": identifier or f"rs_{secrets.token_hex(12)}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": "completed",
    }


def text_part(text: str) -> dict[str, Any]:
    """Return the content part of a message's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(
    text: str | None, identifier: str | None = None, status: str = "completed"
) -> dict[str, Any]:
    """Return the item of a message; text None: without a content part."""
    return {
        "id": identifier or f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }


def call_item(
    name: str, arguments: str, identifiers: tuple[str, str] | None = None, status: str = "completed"
) -> dict[str, Any]:
    """Return the item of a call; identifiers: id of the item and id of the call."""
    item, call = identifiers or (f"fc_{secrets.token_hex(12)}", call_id())
    return {
        "id": item,
        "type": "function_call",
        "call_id": call,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def output_items(found: Completion) -> list[dict[str, Any]]:
    """Return all items of an answer."""
    items = [reasoning_item(found.reasoning)] if found.reasoning else []
    if found.text or not found.tool_calls:
        items.append(message_item(found.text))
    return items + [call_item(call.name, call.arguments) for call in found.tool_calls]


def completed(
    body: dict[str, Any], output: list[dict[str, Any]], found: Completion, prompt_tokens: int
) -> dict[str, Any]:
    """Return the response `body` completed with its output, status and usage."""
    whole_answer = found.finish_reason != "length"
    counts = usage(prompt_tokens, [found])
    return {
        **body,
        "status": "completed" if whole_answer else "incomplete",
        "incomplete_details": None if whole_answer else {"reason": "max_output_tokens"},
        "output": output,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": counts["completion_tokens_details"],
            "total_tokens": counts["total_tokens"],
        },
    }
