"""How byte-level BPE splits text before it merges: GGUF's names, and the patterns.

The patterns are those of the models' own tokenizer.json, as llama.cpp has them
(src/llama-vocab.cpp) under `tokenizer.ggml.pre`.
"""

from __future__ import annotations

#: What the patterns end with: symbols, line ends, spaces.
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

#: tokenizer.ggml.pre -> the pattern; None: as GPT-2 does. The first name of a pattern is written.
SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "default": None,
    "gpt-4o": _GPT4O,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
}

#: Those of which a word that is a token is that token, whatever the merges say.
WHOLE_WORDS = ("llama-bpe", "llama3", "tekken")

#: tokenizer.ggml.X_token_id of what a text ends with beside `eos`: of a turn, of a message.
MORE_ENDS = ("eot", "eom")

#: Where a GGUF of ours says how text is normalized before it is split: Unicode forms, in order.
NORMALIZER_KEY = "mxc.normalizer"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")

#: tokenizer.ggml.pre -> the forms of the models that split so; GGUF has no key for them.
NORMALIZED: dict[str, tuple[str, ...]] = {"qwen2": ("NFC",)}


def name_of(pattern: str | None) -> str | None:
    """The name that llama.cpp has for a way to split; None where it has none."""
    return next((name for name, known in SPLITS.items() if known == pattern), None)
