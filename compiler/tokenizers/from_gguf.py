"""The tokenizer of a GGUF as tokenizer.json, and its chat template.

Byte-level BPE alone ("gpt2"): of the other kinds nothing is made, and a prompt must be given as
tokens. How text is split before merges are applied goes by `tokenizer.ggml.pre`; the patterns are
those of the models' own tokenizer.json, as llama.cpp has them (src/llama-vocab.cpp).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from mxc.dialects.errors import CheckpointError
from mxc.dialects.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG

#: What the patterns end with: symbols, line ends, spaces.
_SYMBOLS, _SPACES = r" ?[^\s\p{L}\p{N}]+", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf"{_SYMBOLS}[\r\n]*|{_SPACES}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n/]*|{_SPACES}"
)

#: tokenizer.ggml.pre -> how text is split; None: as GPT-2 does.
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "gpt-4o": _GPT4O,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
}

#: Types of tokens: control tokens are special, those that a user defined are never split.
_CONTROL, _USER_DEFINED = 3, 4


def text_files(metadata: Mapping[str, Any], place: str) -> dict[str, bytes]:
    """Name -> content of the files that transformers would have; none for other tokenizers.

    Raises CheckpointError for a way of splitting that is not known, and for lists that do not go
    together.
    """

    def said(name: str) -> Any:
        return metadata.get(f"tokenizer.{name}")

    if said("ggml.model") != "gpt2":
        return {}
    words, kinds = said("ggml.tokens"), said("ggml.token_type")
    merges, pre = said("ggml.merges"), said("ggml.pre") or "default"
    if pre not in _SPLITS:
        raise CheckpointError(
            f"{place}: tokenizer.ggml.pre {pre!r} is not supported; supported: {', '.join(_SPLITS)}"
        )
    words, merges = list(words or ()), [tuple(str(m).split(" ")) for m in merges or ()]
    types = list(kinds) if kinds is not None else [1] * len(words)
    if len(types) != len(words) or len({*words}) != len(words) or any(len(m) != 2 for m in merges):
        raise CheckpointError(
            f"{place}: tokenizer.ggml has {len(words)} tokens, {len({*words})} of them different, "
            f"and {len(types)} types; wanted as many, and pairs to merge; fetch the file again"
        )
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    split = _SPLITS[pre]
    before = [] if split is None else [pre_tokenizers.Split(Regex(split), behavior="isolated")]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    for word, kind in zip(words, types, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            special = kind == _CONTROL
            tokenizer.add_tokens([AddedToken(word, special=special, normalized=False)])
    names = {
        name: words[number]
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
        if type(number := said(f"ggml.{key}_token_id")) is int and number < len(words)
    }
    if said("ggml.add_bos_token") and "bos_token" in names:
        first = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, words.index(first))]
        )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    files = {TOKENIZER: tokenizer.to_str(), TOKENIZER_CONFIG: json.dumps(settings, indent=1) + "\n"}
    if isinstance(template := said("chat_template"), str):
        files[CHAT_TEMPLATE] = template
    return {name: content.encode() for name, content in files.items()}
