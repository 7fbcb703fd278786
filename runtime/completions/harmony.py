"""Parser of gpt-oss answers: messages with a header that names channel and recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

Source: OpenAI's description of the harmony format. Only special tokens are markers; text that
looks like a marker is not. The parser accepts every sequence of tokens: a header without a message
is content, a message without an end ends at the next header, and an unknown channel is content.
"""

from __future__ import annotations

import re

from mxc.runtime.completions.deltas import ARGUMENTS, CALL, CONTENT, REASONING, Delta

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALLED = "<|end|>", "<|return|>", "<|call|>"
#: The special tokens of the format; a tokenizer that has all of them uses it.
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALLED)
#: The markers that end the answer.
ENDS = (RETURN, CALLED)

_RECIPIENT = re.compile(r"to=(\S+)|(functions\.\S+)")
_NOBODY = ("assistant", "user", "all")
#: A header is a few tokens; more text than this without a message is content.
_LONGEST_HEADER = 200


class HarmonyParser:
    """Parses one answer, which begins after `<|start|>assistant`."""

    def __init__(self) -> None:
        """Start inside the header that the prompt has opened."""
        self.kind = CONTENT
        self._calls = 0
        self._said = False
        self._header: list[str] | None = [""]  # role, then channel and others; None in a message

    def text(self, piece: str) -> list[Delta]:
        """Parse text of a header or of a message."""
        if not piece:
            return []
        if self._header is None:
            return [self._delta(piece)]
        self._header[-1] += piece
        if len(self._header[-1]) > _LONGEST_HEADER:
            return self._unfinished_header()
        return []

    def marker(self, name: str) -> list[Delta]:
        """Parse one of MARKERS; any other special token ends a message."""
        if name == MESSAGE:
            return self._begin() if self._header is not None else []
        if name in (CHANNEL, CONSTRAIN):
            if self._header is None:
                self._header = [""]
            # Text before a channel is the role, and maybe the recipient.
            self._header.append(name)
            return []
        deltas = self._unfinished_header()
        self._header = [""]
        self.kind = CONTENT
        return deltas

    def finish(self) -> list[Delta]:
        """Return the text of a header that no message followed, as content."""
        return self._unfinished_header()

    def _begin(self) -> list[Delta]:
        """Begin a message, whose kind and recipient are in its header."""
        header, self._header = self._header or [], None
        channels = [part.removeprefix(CHANNEL) for part in header if part.startswith(CHANNEL)]
        channel = channels[-1].split() if channels else []
        found = _RECIPIENT.findall(" ".join([header[0], *channels]))
        recipient = next((a or b for a, b in found if (a or b) not in _NOBODY), None)
        if recipient is not None:
            self.kind = CALL
            self._calls += 1
            return [Delta(CALL, recipient.removeprefix("functions."), self._calls - 1)]
        self.kind = REASONING if channel[:1] == ["analysis"] else CONTENT
        if self.kind == CONTENT and self._said:
            return [Delta(CONTENT, "\n")]  # after a preamble
        return []

    def _delta(self, piece: str) -> Delta:
        if self.kind == CALL:
            return Delta(ARGUMENTS, piece, self._calls - 1)
        self._said |= self.kind == CONTENT
        return Delta(self.kind, piece)

    def _unfinished_header(self) -> list[Delta]:
        """Return the text in place of a header as content, unless it only names a role."""
        header, self._header = self._header, None
        if header is None:
            return []
        self.kind = CONTENT
        words = header[0].strip()
        if len(header) > 1 or words in ("", "assistant") or _RECIPIENT.fullmatch(words):
            return []
        self._said = True
        return [Delta(CONTENT, header[0].removeprefix("assistant"))]
