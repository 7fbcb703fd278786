"""Answers are taken apart the same however their text is cut, and any tokens are an answer."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxc.runtime.completions import harmony, tagged
from mxc.runtime.completions.deltas import AnswerParser
from mxc.runtime.completions.harmony import HarmonyParser
from mxc.runtime.completions.stream import AnswerPiece, Completion
from mxc.runtime.completions.tagged import TaggedParser

#: Items of an answer: special tokens are ("<|end|>",), text is a string.
Item = str | tuple[str]

WEATHER = '{"city": "Paris"}'
HARMONY: dict[str, tuple[list[Item], Any]] = {
    "reasoning and answer": (
        [("<|channel|>",), "analysis", ("<|message|>",), "Think.", ("<|end|>",), ("<|start|>",),
         "assistant", ("<|channel|>",), "final", ("<|message|>",), "Paris.", ("<|return|>",)],
        ("Paris.", "Think.", []),
    ),
    "a call, recipient in the channel": (
        [("<|channel|>",), "commentary to=functions.weather ", ("<|constrain|>",), "json",
         ("<|message|>",), WEATHER, ("<|call|>",)],
        ("", "", [("weather", WEATHER)]),
    ),
    "a call, recipient in the role": (
        [" to=functions.weather", ("<|channel|>",), "commentary", ("<|message|>",), WEATHER,
         ("<|call|>",)],
        ("", "", [("weather", WEATHER)]),
    ),
    "a preamble before a call": (
        [("<|channel|>",), "commentary", ("<|message|>",), "I look.", ("<|end|>",), ("<|start|>",),
         "assistant to=functions.f", ("<|channel|>",), "commentary json", ("<|message|>",), "{}"],
        ("I look.", "", [("f", "{}")]),
    ),
    "text where a header should be": (["Hello ", "there"], ("Hello there", "", [])),
    "no end between two messages": (
        [("<|channel|>",), "analysis", ("<|message|>",), "a", ("<|channel|>",), "final",
         ("<|message|>",), "b"],
        ("b", "a", []),
    ),
    "an unknown channel": ([("<|channel|>",), "other", ("<|message|>",), "x"], ("x", "", [])),
    "a header of the wrong recipient": (
        [("<|channel|>",), "final to=assistant", ("<|message|>",), "x"], ("x", "", []),
    ),
    "markers spelled as text": (
        [("<|channel|>",), "final", ("<|message|>",), "<|end|> is a token"],
        ("<|end|> is a token", "", []),
    ),
}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TAGGED = {
    "plain": ("Hello.", ("Hello.", "", [])),
    "thought": ("<think>\nHm.</think>\n\nParis.", ("Paris.", "Hm.", [])),
    "call": ("I look.\n" + CALL, ("I look.\n", "", [("weather", WEATHER)])),
    "two calls": (CALL + "\n" + CALL, ("", "", [("weather", WEATHER)] * 2)),
    "parameters": ('<tool_call>{"name": "f", "parameters": {}}', ("", "", [("f", "{}")])),
    "no JSON": (
        "<tool_call>weather(Paris)</tool_call>!",
        ("<tool_call>weather(Paris)</tool_call>!", "", []),
    ),
    "no name": ('<tool_call>{"a": 1}', ('<tool_call>{"a": 1}', "", [])),
    "a comparison": ("1 <t and a<", ("1 <t and a<", "", [])),
    "thought that does not end": ("<think>Hm", ("", "Hm", [])),
}


def parsed(parser: AnswerParser, items: list[Item]) -> tuple[str, str, list[tuple[str, str]]]:
    whole = Completion()
    for item in items:
        deltas = parser.text(item) if isinstance(item, str) else parser.marker(item[0])
        whole.add(AnswerPiece(tuple(deltas)))
    whole.add(AnswerPiece(tuple(parser.finish())))
    return whole.text, whole.reasoning, [(c.name, c.arguments) for c in whole.tool_calls]


def cut(items: list[Item], size: int) -> list[Item]:
    pieces: list[Item] = []
    for item in items:
        if isinstance(item, tuple):
            pieces.append(item)
        else:
            pieces += [item[at : at + size] for at in range(0, len(item), size)]
    return pieces


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("name", HARMONY)
def test_harmony(name: str, size: int) -> None:
    items, expected = HARMONY[name]
    assert parsed(HarmonyParser(), cut(items, size)) == expected


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("name", TAGGED)
def test_tags(name: str, size: int) -> None:
    text, expected = TAGGED[name]
    assert parsed(TaggedParser(calls=True, thinks=False), cut([text], size)) == expected


def test_tags_that_are_not_looked_for_are_text() -> None:
    assert parsed(TaggedParser(calls=False, thinks=False), [CALL]) == (CALL, "", [])


def test_a_prompt_may_open_the_thought() -> None:
    found = parsed(TaggedParser(calls=False, thinks=True), ["Hm.</think>", "Yes."])
    assert found == ("Yes.", "Hm.", [])


def test_tags_that_are_special_tokens() -> None:
    items: list[Item] = [("<think>",), "Hm.", ("</think>",), ("<tool_call>",)]
    items += ['{"name": "f", "arguments": "{}"}', ("</tool_call>",), ("<|im_end|>",)]
    assert parsed(TaggedParser(calls=True, thinks=False), items) == ("", "Hm.", [("f", "{}")])


def test_calls_are_counted() -> None:
    again, _ = HARMONY["a call, recipient in the role"]
    for parser, items in (
        (HarmonyParser(), [*again, ("<|start|>",), "assistant", *again]),
        (TaggedParser(calls=True, thinks=False), [CALL + CALL]),
    ):
        found = [
            delta.call
            for item in items
            for delta in (parser.text(item) if isinstance(item, str) else parser.marker(item[0]))
        ]
        assert list(dict.fromkeys(found)) == [0, 1]


TEXTS = st.sampled_from(
    ["", " ", "a", "assistant", "analysis", "final", "commentary", "to=functions.f", "functions.",
     "to=", "{", '{"name": 3}', "\ud7ff", "<think>", "</thi", "<tool_call>", "</tool_call>", "[]"]
)  # fmt: skip
MARKERS = st.sampled_from([*harmony.MARKERS, *tagged.TAGS, "<|endoftext|>"]).map(lambda m: (m,))


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS | MARKERS, max_size=20), st.booleans(), st.booleans())
def test_anything_is_an_answer(items: list[Item], calls: bool, thinks: bool) -> None:
    for parser in (HarmonyParser(), TaggedParser(calls=calls, thinks=thinks)):
        text, reasoning, found = parsed(parser, items)
        json.dumps([text, reasoning, found])
        said = "".join(item for item in items if isinstance(item, str))
        assert len(text) + len(reasoning) <= len(said) + sum(len(m[0]) + 1 for m in items if m)
