"""The answer format that a model was trained on, detected from its tokenizer and template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mxc.runtime.completions import harmony, tagged
from mxc.runtime.completions.deltas import AnswerParser, PlainParser
from mxc.runtime.text import Text

HARMONY, TAGGED, PLAIN = "harmony", "tagged", "plain"


@dataclass(frozen=True, kw_only=True)
class AnswerDialect:
    """An answer format.

    `markers`: the special tokens that structure an answer, by id. `ends`: the markers that also end
    an answer. `thinks`: whether answers may have reasoning. `calls`: whether they may have calls.
    """

    name: str
    markers: Mapping[int, str]
    ends: frozenset[int] = frozenset()
    thinks: bool = False
    calls: bool = False

    def parser(self, prompt: str, *, tools: bool) -> AnswerParser:
        """Return the parser of an answer to `prompt`; `tools`: whether it may call functions."""
        if self.name == HARMONY:
            return harmony.HarmonyParser()
        if self.name == TAGGED:
            thinks = prompt.rstrip().endswith(tagged.THINK)
            return tagged.TaggedParser(calls=tools, thinks=thinks)
        return PlainParser()


def dialect_of(text: Text) -> AnswerDialect:
    """Return the dialect of an artifact's chats; PLAIN where none is recognized."""
    found = {name: text.tokenizer.token_to_id(name) for name in (*harmony.MARKERS, tagged.THINK)}
    ids: dict[str, int] = {name: each for name, each in found.items() if each is not None}
    if text.has_chat_template and all(name in ids for name in harmony.MARKERS):
        return AnswerDialect(
            name=HARMONY,
            markers={ids[name]: name for name in harmony.MARKERS},
            ends=frozenset(ids[name] for name in harmony.ENDS),
            thinks=True,
            calls=True,
        )
    template = text.template or ""
    calls = tagged.TOOL_CALL in template
    thinks = tagged.THINK in template or tagged.THINK in ids
    if text.has_chat_template and (calls or thinks):
        special = {
            number: token.content
            for number, token in text.tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content in tagged.TAGS
        }
        return AnswerDialect(name=TAGGED, markers=special, thinks=thinks, calls=calls)
    return AnswerDialect(name=PLAIN, markers={})
