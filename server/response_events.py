"""Events of a streamed response: each item is added, extended by deltas, and done."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from mxc.runtime.completions.deltas import ARGUMENTS, CALL, CONTENT, REASONING, Delta
from mxc.runtime.completions.stream import AnswerStream
from mxc.server.answers import event
from mxc.server.chat import call_id
from mxc.server.errors import as_api_error
from mxc.server.response_items import (
    call_item,
    completed,
    last_status,
    message_item,
    reasoning_item,
    text_part,
)


class ResponseEvents:
    """Makes the events of one response."""

    def __init__(self, body: dict[str, Any], prompt_tokens: int) -> None:
        """body: the response at its beginning."""
        self._body = body
        self._prompt_tokens = prompt_tokens
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._kind: str | None = None
        self._text = ""
        self._name = ""
        self._id = ""
        self._call = ""

    async def events(self, stream: AnswerStream) -> AsyncGenerator[bytes]:
        """Yield all events of an answer."""
        yield self._event("response.created", response=self._body)
        yield self._event("response.in_progress", response=self._body)
        try:
            async for piece in stream:
                for delta in piece.deltas:
                    for each in self._delta(delta):
                        yield each
        except Exception as error:
            told = as_api_error(error)
            failed = {"code": "server_error", "message": told.message}
            yield self._event(
                "response.failed", response={**self._body, "status": "failed", "error": failed}
            )
            return
        if self._kind is None and not self._done:
            for each in self._open(CONTENT):  # an answer without text is a message without text
                yield each
        found = stream.completion
        for each in self._close(last_status(found)):
            yield each
        body = completed(self._body, self._done, found, self._prompt_tokens)
        yield self._event(f"response.{body['status']}", response=body)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _delta(self, delta: Delta) -> Iterator[bytes]:
        kind = CALL if delta.kind == ARGUMENTS else delta.kind
        if delta.kind == CALL or kind != self._kind:
            yield from self._close()
            self._name = delta.text
            yield from self._open(kind)
        if delta.kind == CALL:
            return
        self._text += delta.text
        name = {
            CONTENT: "response.output_text.delta",
            REASONING: "response.reasoning_text.delta",
            CALL: "response.function_call_arguments.delta",
        }[kind]
        yield self._event(name, delta=delta.text, **self._place(kind))

    def _place(self, kind: str) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": len(self._done)}
        if kind == CONTENT:
            place |= {"content_index": 0, "logprobs": []}
        elif kind == REASONING:
            place |= {"content_index": 0}
        return place

    def _open(self, kind: str) -> Iterator[bytes]:
        self._kind, self._text, self._call = kind, "", call_id()
        prefix = {CONTENT: "msg", REASONING: "rs", CALL: "fc"}[kind]
        self._id = f"{prefix}_{secrets.token_hex(12)}"
        item = self._item("in_progress")
        if kind != CALL:
            item["content"] = []
        index = len(self._done)
        yield self._event("response.output_item.added", output_index=index, item=item)
        if kind == CONTENT:
            place = {"item_id": self._id, "output_index": index, "content_index": 0}
            yield self._event("response.content_part.added", part=text_part(""), **place)

    def _item(self, status: str) -> dict[str, Any]:
        if self._kind == CALL:
            return call_item(self._name, self._text, (self._id, self._call), status)
        if self._kind == REASONING:
            return {**reasoning_item(self._text, self._id), "status": status}
        return message_item(self._text, self._id, status)

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        if self._kind is None:
            return
        place = self._place(self._kind)
        if self._kind == CONTENT:
            yield self._event("response.output_text.done", text=self._text, **place)
            del place["logprobs"]
            part = text_part(self._text)
            yield self._event("response.content_part.done", part=part, **place)
        elif self._kind == REASONING:
            yield self._event("response.reasoning_text.done", text=self._text, **place)
        else:
            yield self._event(
                "response.function_call_arguments.done",
                arguments=self._text,
                name=self._name,
                **place,
            )
        item = self._item(status)
        yield self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._kind = None
