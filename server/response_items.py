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
    """Return all items of an answer; the last one is incomplete where the answer is cut off."""
    items = [reasoning_item(found.reasoning)] if found.reasoning else []
    in_thought = bool(items) and last_status(found) == "incomplete"
    if found.text or not (found.tool_calls or in_thought):
        items.append(message_item(found.text))
    items += [call_item(call.name, call.arguments) for call in found.tool_calls]
    items[-1]["status"] = last_status(found)
    return items


def last_status(found: Completion) -> str:
    """Return the status of an answer's last item, and of the answer."""
    return "incomplete" if found.finish_reason == "length" else "completed"


def completed(
    body: dict[str, Any], output: list[dict[str, Any]], found: Completion, prompt_tokens: int
) -> dict[str, Any]:
    """Return the response `body` completed with its output, status and usage."""
    status = last_status(found)
    counts = usage(prompt_tokens, [found])
    return {
        **body,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": counts["completion_tokens_details"],
            "total_tokens": counts["total_tokens"],
        },
    }
