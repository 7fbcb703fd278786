"""Parser of answers with tags in their text: `<think>`, and `<tool_call>` of Hermes and Qwen.

    <think>...</think>...<tool_call>{"name": "f", "arguments": {...}}</tool_call>

A call whose text is not such an object stays content, tags included.
"""

from __future__ import annotations

import json

from mxc.runtime.completions.deltas import ARGUMENTS, CALL, CONTENT, REASONING, Delta
from mxc.runtime.text import StopStrings

THINK, THOUGHT = "<think>", "</think>"
TOOL_CALL, CALLED = "<tool_call>", "</tool_call>"
TAGS = (THINK, THOUGHT, TOOL_CALL, CALLED)


class TaggedParser:
    """Parses one answer.

    `calls`: whether `<tool_call>` is recognized. `thinks`: whether the answer begins inside
    reasoning.
    """

    def __init__(self, *, calls: bool, thinks: bool) -> None:
        """Start with content, or inside the reasoning that the prompt has opened."""
        self._calls = calls
        self._number = 0
        self._fresh = True
        self._call = ""
        self._enter(REASONING if thinks else CONTENT)

    def text(self, piece: str) -> list[Delta]:
        """Parse more text; text that may begin a tag is held back."""
        deltas: list[Delta] = []
        while piece:
            deltas += self._add(self._tags.push(piece))
            if self._tags.found is None:
                break
            piece = self._tags.rest
            deltas += self._tag(self._tags.found)
        return deltas

    def marker(self, name: str) -> list[Delta]:
        """Parse a tag that is a special token; other special tokens are ignored."""
        if name not in TAGS:
            return []
        deltas = self._add(self._tags.finish())
        return deltas + (self._tag(name) if name in self._expected else self._add(name))

    def finish(self) -> list[Delta]:
        """End the answer; an open call ends with it."""
        deltas = self._add(self._tags.finish())
        if self.kind == CALL:
            deltas += self._parsed(closed=False)
        return deltas

    def _enter(self, kind: str) -> None:
        self.kind = kind
        expected = {REASONING: (THOUGHT,), CALL: (CALLED,)}
        begin = (THINK, TOOL_CALL) if self._calls else (THINK,)
        self._expected = expected.get(kind, begin)
        self._tags = StopStrings(self._expected)

    def _tag(self, tag: str) -> list[Delta]:
        deltas: list[Delta] = []
        if self.kind == CALL:
            deltas = self._parsed(closed=True)
        self._fresh = True
        self._enter({THINK: REASONING, TOOL_CALL: CALL}.get(tag, CONTENT))
        return deltas

    def _add(self, text: str) -> list[Delta]:
        if self.kind == CALL:
            self._call += text
            return []
        if self._fresh:
            text = text.lstrip()  # whitespace between a tag and the text after it
        if not text:
            return []
        self._fresh = False
        return [Delta(self.kind, text)]

    def _parsed(self, *, closed: bool) -> list[Delta]:
        text, self._call = self._call, ""
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            name = None
        if not isinstance(name, str):
            return [Delta(CONTENT, TOOL_CALL + text + (CALLED if closed else ""))]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        self._number += 1
        return [
            Delta(CALL, name, self._number - 1),
            Delta(ARGUMENTS, arguments, self._number - 1),
        ]
