"""Rendering against transformers, streaming against decoding the whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.errors import ArtifactError, RequestError
from mxc.runtime.text import StopStrings, Text

PROSE = (
    "Grüße aus Köln: “zwölf Boxkämpfer” – 你好，世界 🚀🧑‍🚀 naïve café e\u0301.\n\tcode = {'a': 1}"
)

# Uses what real templates use: blocks to trim, loop controls, namespaces, filters, strftime_now.
TEMPLATE = """{{- bos_token }}
{%- set ns = namespace(seen=false) %}
{%- for message in messages %}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {%- if message.role not in ["system", "user", "assistant"] %}
        {{- raise_exception("unknown role " + message.role) }}
    {%- endif %}
<|{{ message.role }}|>{{ message.content | trim }}
    {% if message.role == "user" %}
{% set ns.seen = true %}
seen
    {% endif %}
    {% generation %}
{{ message | tojson }}{{ eos_token }}{% endgeneration %}
{%- endfor %}
{%- if tools is not none %}TOOLS{{ tools | tojson(indent=2) }}{% endif %}
{%- if ns.seen and add_generation_prompt %}
<|assistant|>{{ strftime_now("%Y") }}{{ undefined_token }}{% endif %}
"""


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROSE], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As sentencepiece models: words with a leading mark, unknown characters as bytes."""
    words = ["▁Hello", "▁wor", "ld", "▁", "é"]
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    vocab |= {word: 256 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / TOKENIZER))
    (tmp_path / CHAT_TEMPLATE).write_text(TEMPLATE)
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "model_max_length": 5}
    (tmp_path / TOKENIZER_CONFIG).write_text(json.dumps(config))
    return tmp_path


MESSAGES = [
    {"role": "system", "content": "  Be <brief> & kind. "},
    {"role": "skip", "content": "no"},
    {"role": "user", "content": PROSE},
]


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "ü<b>"}}]])
@pytest.mark.parametrize("count", [1, 3])
def test_rendering_is_that_of_transformers(
    folder: Path, tools: list[dict[str, Any]] | None, count: int
) -> None:
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZER),
        bos_token=AddedToken("<s>", special=True),
        eos_token="</s>",
        chat_template=TEMPLATE,
    )
    want = oracle.apply_chat_template(
        MESSAGES[:count], tools=tools, add_generation_prompt=True, tokenize=False
    )
    text = Text.load(folder)
    assert text.chat(MESSAGES[:count], tools=tools) == want
    ids = oracle.apply_chat_template(MESSAGES[:count], tools=tools, add_generation_prompt=True)
    assert text.encode(want, add_special_tokens=False) == list(ids["input_ids"])
    assert text.encode(PROSE) == oracle(PROSE)["input_ids"]


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        ("{{ raise_exception('one user at a time') }}", RequestError, "one user at a time"),
        ("{% if %}", ArtifactError, r"chat_template\.jinja, line 1: .*--raw"),
        ("{{ ''.__class__.__mro__ }}", RequestError, "unsafe"),
        ("{{ messages.append(1) }}", RequestError, "unsafe"),
    ],
)
def test_templates_that_fail(folder: Path, template: str, error: type[Any], message: str) -> None:
    (folder / CHAT_TEMPLATE).write_text(template)
    with pytest.raises(error, match=message):
        Text.load(folder).chat(MESSAGES)


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOP, "chat_template.jinja did not end within 1 s"),
        ("{{ 'a' * 10**10 }}", r"MemoryError \(more than 512 MiB\)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ (1e400) | string | float | int }}", "OverflowError|NameError"),
        ("{{ 'x'.encode('utf-16').decode() }}", "UnicodeDecodeError"),
        ("{% for i in range(999) %}{{ 'y' * 99999 }}{% endfor %}", "more than 16777216 characters"),
        ("{{ a.b.c }}", "UndefinedError: 'a' is undefined"),
    ],
)
def test_templates_that_do_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, template: str, message: str
) -> None:
    monkeypatch.setattr("mxc.artifact.chat_template.SECONDS", 1.0 if template == LOOP else 10.0)
    (folder / CHAT_TEMPLATE).write_text(template)
    text = Text.load(folder)
    with pytest.raises(RequestError, match=rf"{message}.*; use --raw") as refusal:
        text.chat(MESSAGES)
    assert "\n" not in str(refusal.value)


def test_a_template_goes_on_after_a_chat_that_it_could_not_render(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / CHAT_TEMPLATE).write_text("{{ messages[0].content * 10**9 if n else 'fine' }}")
    text = Text.load(folder)
    assert text.chat(MESSAGES, n=0) == "fine"
    with pytest.raises(RequestError, match="MemoryError"):
        text.chat(MESSAGES, n=1)
    with pytest.raises(RequestError, match="must be JSON: Object of type set"):
        text.chat(MESSAGES, n={1})
    assert text.chat(MESSAGES, n=0) == "fine"
    text._template._child.process.kill()
    with pytest.raises(RequestError, match="ended its process"):
        text.chat(MESSAGES, n=0)
    assert text.chat(MESSAGES, n=0) == "fine"


def test_where_the_template_is_found(folder: Path) -> None:
    (folder / CHAT_TEMPLATE).unlink()
    text = Text.load(folder)
    assert not text.has_chat_template
    with pytest.raises(ArtifactError, match="has no chat template; use --raw"):
        text.chat(MESSAGES)
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    for found, want in (("T{{ eos_token }}", "T"), (named, "D")):
        (folder / TOKENIZER_CONFIG).write_text(json.dumps({"chat_template": found}))
        assert Text.load(folder).chat(MESSAGES) == want


def test_files_that_are_no_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"holds no tokenizer\.json.* --prompt-tokens"):
        Text.load(tmp_path)
    (tmp_path / TOKENIZER).write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: not a tokenizer"):
        Text.load(tmp_path)
    byte_level().save(str(tmp_path / TOKENIZER))
    for content, message in (
        ("{", "not JSON"),
        ("[]", "wants an object, got list"),
        ("\xff", "cannot be read"),
        ('{"chat_template": 7}', "chat_template: wants a string, or a list of objects"),
        ('{"chat_template": ["a"]}', "chat_template: wants a string, or a list of objects"),
        ('{"bos_token": [1]}', r"bos_token: wants a string .* found \[1\]"),
    ):
        (tmp_path / TOKENIZER_CONFIG).write_bytes(content.encode("latin-1"))
        with pytest.raises(ArtifactError, match=message):
            Text.load(tmp_path)


def test_streamed_text_is_the_decoded_text(folder: Path) -> None:
    text = Text.load(folder)
    ids = text.encode(PROSE)
    stream = text.decoder()
    pieces = [stream.push(token) for token in ids]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "" in pieces  # some token ended within a character
    assert "".join(pieces) + stream.finish() == PROSE


def test_streamed_byte_fallback_and_leading_space() -> None:
    tokenizer = byte_fallback()
    rocket = list("🚀".encode())
    ids = [256, 257, 258, 259, *rocket, *rocket, 260, *"ü".encode(), 256]
    stream = Text(tokenizer, None, {}).decoder()
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids) == "Hello world 🚀🚀éü Hello"
    assert pieces[4:8] == ["", "", "", "🚀"]


def test_bytes_that_never_complete(folder: Path) -> None:
    rocket = Text.load(folder).encode("\U0001f6f0", add_special_tokens=False)
    stream = Text.load(folder).decoder()
    assert [stream.push(token) for token in rocket[:-1]] == [""] * (len(rocket) - 1)
    assert stream.finish() == "\ufffd"
    # The next text starts afresh, and nothing is held back for ever.
    many = "".join(stream.push(rocket[0]) for _ in range(64))
    assert (many, stream.finish()) == ("\ufffd" * 64, "")


def test_special_tokens_are_shown_on_request(folder: Path) -> None:
    text = Text.load(folder)
    ids = [0, *text.encode("ab", add_special_tokens=False), 1]
    for skip, want in ((True, "ab"), (False, "<s>ab</s>")):
        stream = text.decoder(skip_special_tokens=skip)
        assert "".join(map(stream.push, ids)) + stream.finish() == want


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("stops", "text", "want", "found"),
    [
        (["END"], "abEENDcd", "abE", "END"),
        (["END"], "abEN", "abEN", None),
        (["\n\n", "\nUser"], "a\nUsb\nUser: x", "a\nUsb", "\nUser"),
        (["aab"], "aaaab", "aa", "aab"),
        ([], "abc", "abc", None),
    ],
)
def test_stop_strings(size: int, stops: list[str], text: str, want: str, found: str | None) -> None:
    stream = StopStrings(stops)
    pieces = [stream.push(text[i : i + size]) for i in range(0, len(text), size)]
    assert "".join(pieces) + stream.finish() == want
    assert stream.found == found


def test_empty_stop_string() -> None:
    with pytest.raises(RequestError, match="must not be empty"):
        StopStrings(["a", ""])
