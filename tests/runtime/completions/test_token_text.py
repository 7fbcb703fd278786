"""Bytes of tokens, against what the tokenizer decodes."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from mxc.runtime.completions.token_text import TokenBytes
from mxc.runtime.text import Text


def test_bytes_of_a_text(harmony_files: Path) -> None:
    text = Text.load(harmony_files)
    token_bytes = TokenBytes(text.tokenizer)

    @settings(max_examples=100, deadline=None)
    @given(st.text())
    def check(said: str) -> None:
        assert b"".join(map(token_bytes, text.encode(said))) == said.encode()

    check()
    (end,) = text.encode("<|end|>")
    assert token_bytes(end) == b"<|end|>"
    assert token_bytes(10_000) == b""


def test_bytes_as_sentencepiece_has_them() -> None:
    words = {"\u2581the": 0, "<0xE2>": 1, "<unk>": 2}
    tokenizer = Tokenizer(models.BPE(words, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    assert [TokenBytes(tokenizer)(token) for token in (0, 1)] == [b" the", b"\xe2"]
