"""Patterns by which byte-level BPE splits text before merging, by GGUF's names.

The patterns are those of the models' own tokenizer.json, under the names that llama.cpp
(src/llama-vocab.cpp) uses for `tokenizer.ggml.pre`.
"""

from __future__ import annotations

#: Common ends of the patterns: symbols, line ends, spaces.
_SYMBOLS, _SPACES = r" ?[^\s\p{L}\p{N}]+", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf"{_SYMBOLS}[\r\n]*|{_SPACES}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_LLAMA3 = rf"{_SUFFIX}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_SUFFIX}|{_BEFORE}\p{{L}}+|\p{{N}}|{_REST}"
_LINES = rf"{_SYMBOLS}[\r\n/]*|{_SPACES}"
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_BEFORE}{_UPPER}+{_LOWER}*{_SUFFIX}?"
    rf"|\p{{N}}{{1,3}}|{_LINES}"
)
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_LINES}"

#: tokenizer.ggml.pre -> the pattern; None: that of GPT-2. The first name of a pattern is written.
SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "default": None,
    "gpt-4o": _GPT4O,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
}

#: Names for which a word that is a token becomes that token, whatever the merges are.
WHOLE_WORDS = ("llama-bpe", "llama3", "tekken")

#: tokenizer.ggml.X_token_id of tokens that end a text beside `eos`: end of turn, of message.
MORE_ENDS = ("eot", "eom")

#: Key for the Unicode forms by which text is normalized before splitting, in order.
NORMALIZER_KEY = "mxc.normalizer"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")

#: tokenizer.ggml.pre -> the forms that models with this split use; GGUF has no key for them.
NORMALIZED: dict[str, tuple[str, ...]] = {"qwen2": ("NFC",)}


def name_of(pattern: str | None) -> str | None:
    """Return llama.cpp's name of a split pattern; None if it has none."""
    return next((name for name, known in SPLITS.items() if known == pattern), None)
