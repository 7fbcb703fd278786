"""Tokenizers and chat templates are tried while compiling: broken ones stop there, in one line."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.tokenizers import check
from mxc.compiler.tokenizers.check import check_texts
from mxc.errors import CheckpointError

SOURCE = Path("the/checkpoint")


def words(size: int = 7) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words().save(str(tmp_path / TOKENIZER))
    (tmp_path / CHAT_TEMPLATE).write_text("w1 {{ messages[0].content }}{{ bos_token }}")
    (tmp_path / TOKENIZER_CONFIG).write_text(json.dumps({"bos_token": "w1", "eos_token": "w2"}))
    return tmp_path


def checked(folder: Path, vocab_size: int = 7) -> list[str]:
    return check_texts(folder, SOURCE, vocab_size=vocab_size, eos_tokens=[2])


def test_what_is_whole_passes(folder: Path) -> None:
    assert checked(folder) == []
    (folder / TOKENIZER).unlink()
    assert checked(folder) == []


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (TOKENIZER, "{}", "the/checkpoint/tokenizer.json: not a tokenizer"),
        (TOKENIZER, "", "the/checkpoint/tokenizer.json: not a tokenizer"),
        (TOKENIZER_CONFIG, "{", "the/checkpoint/tokenizer_config.json: not JSON"),
        (TOKENIZER_CONFIG, "[" * 100_000, "the/checkpoint/tokenizer_config.json: not JSON"),
        (TOKENIZER_CONFIG, '{"bos_token": 3}', "bos_token: wants a string or an object"),
        (TOKENIZER_CONFIG, '{"chat_template": 3}', "chat_template: wants a string, or a list"),
        (TOKENIZER_CONFIG, '{"eos_token": "</s>"}', "'</s>', which tokenizer.json does not have"),
        (CHAT_TEMPLATE, "{% if %}", "chat_template.jinja, line 1: .*correct chat_template.jinja"),
        (CHAT_TEMPLATE, "{{ 1 / 0 }}", "ZeroDivisionError: division by zero; correct chat_temp"),
        (CHAT_TEMPLATE, "{{ x.y }}", "UndefinedError: 'x' is undefined; correct"),
        (CHAT_TEMPLATE, b"\xff", "chat_template.jinja: cannot be read"),
    ],
)
def test_broken_files(folder: Path, file: str, content: str | bytes, message: str) -> None:
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=message) as refusal:
        checked(folder)
    assert str(refusal.value).startswith(str(SOURCE))
    assert "--raw" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_vocabulary_that_is_not_the_models(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"its vocabulary has the token 6, .* is 0 to 5"):
        checked(folder, vocab_size=6)
    tokenizer = words()
    tokenizer.add_tokens([AddedToken("<image>")])
    tokenizer.save(str(folder / TOKENIZER))
    (note,) = checked(folder)
    assert "has 1 added tokens of which the model has none, such as '<image>' (7)" in note
    (folder / CHAT_TEMPLATE).write_text("w1 <image>")
    with pytest.raises(CheckpointError, match=r"a chat has the token 7, .* is 0 to 6"):
        checked(folder)


def test_what_is_odd_is_noted(folder: Path) -> None:
    config = {"pad_token": "<pad>", "eos_token": "w3", "chat_template": "another"}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(config))
    (folder / CHAT_TEMPLATE).write_text("{{ raise_exception('a system message first') }}")
    notes = "\n".join(checked(folder))
    for said in (
        "pad_token is '<pad>', which tokenizer.json does not have",
        "eos_token is 'w3' (3), and generation ends at 2",
        "has another chat template than chat_template.jinja",
        "the chat template refuses these messages: a system message first",
    ):
        assert said in notes


def test_what_does_not_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 2.0)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (folder / CHAT_TEMPLATE).write_text(loop)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: trying it did not end within 2 s"):
        checked(folder)
