"""Converts the tokenizer of a GGUF file to tokenizer.json, and extracts its chat template.

Supported are byte-level BPE ("gpt2"), with a split pattern named by `tokenizer.ggml.pre`, and
sentencepiece ("llama"). Other kinds are not converted, and prompts must be given as tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.tokenizers import sentencepiece
from mxc.compiler.tokenizers.sentencepiece import CONTROL, USER_DEFINED
from mxc.compiler.tokenizers.splits import (
    FORMS,
    NORMALIZED,
    NORMALIZER_KEY,
    SPLITS,
    WHOLE_WORDS,
)
from mxc.errors import CheckpointError


def text_files(metadata: Mapping[str, Any], place: str) -> dict[str, bytes]:
    """Return name -> content of the files that transformers uses; {} for other kinds of tokenizers.

    Raises CheckpointError for an unknown split pattern, for lists that do not match, and for values
    of the wrong type.
    """
    try:
        return _text_files(metadata, place)
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise CheckpointError(
            f"{place}: tokenizer.ggml is no tokenizer ({error}); fetch the file again"
        ) from error


def _text_files(metadata: Mapping[str, Any], place: str) -> dict[str, bytes]:
    def said(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.{name}", default)

    kind, words = said("ggml.model"), [str(word) for word in said("ggml.tokens", ())]
    if kind not in ("gpt2", "llama") or not words:
        return {}
    types = [int(kind) for kind in said("ggml.token_type", [1] * len(words))]
    if len(types) != len(words) or len({*words}) != len(words):
        raise CheckpointError(
            f"{place}: tokenizer.ggml has {len(words)} tokens, {len({*words})} of them different, "
            f"and {len(types)} types; wanted as many; fetch the file again"
        )
    if kind == "gpt2":
        tokenizer = _byte_level(said, words, place)
        if forms := normalizer(metadata, place):
            steps = [getattr(normalizers, form)() for form in forms]
            tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    else:
        scores = said("ggml.scores", ())
        if len(scores) != len(words):
            raise CheckpointError(
                f"{place}: tokenizer.ggml has {len(words)} tokens and {len(scores)} scores; wanted "
                "as many; fetch the file again"
            )
        before = bool(said("ggml.add_space_prefix", True))
        tokenizer = sentencepiece.tokenizer(words, scores, types, space_before=before, place=place)
    for word, each in zip(words, types, strict=True):
        if each in (CONTROL, USER_DEFINED):
            special = each == CONTROL
            tokenizer.add_tokens([AddedToken(word, special=special, normalized=False)])
    names = {
        name: words[number]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        )
        if type(number := said(f"ggml.{key}_token_id")) is int and 0 <= number < len(words)
    }
    # By default, llama.cpp adds the begin token to a sentencepiece vocabulary's texts.
    ends = {
        "bos_token": bool(said("ggml.add_bos_token", kind == "llama")),
        "eos_token": bool(said("ggml.add_eos_token", False)),
    }
    _surround(tokenizer, words, *(names.get(end) if added else None for end, added in ends.items()))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    files = {TOKENIZER: tokenizer.to_str(), TOKENIZER_CONFIG: json.dumps(settings, indent=1) + "\n"}
    if isinstance(template := said("chat_template"), str):
        files[CHAT_TEMPLATE] = template
    return {name: content.encode() for name, content in files.items()}


def normalizer(metadata: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Return the Unicode normalization forms in order: as stated, or by the split pattern.

    Raises CheckpointError for an unknown form.
    """
    stated = metadata.get(NORMALIZER_KEY)
    if stated is None:
        return NORMALIZED.get(str(metadata.get("tokenizer.ggml.pre")), ())
    forms = tuple(str(stated).split())
    if not {*forms} <= {*FORMS}:
        raise CheckpointError(
            f"{place}: {NORMALIZER_KEY} is {stated!r}, wanted some of {', '.join(FORMS)}"
        )
    return forms


def _byte_level(said: Any, words: Sequence[str], place: str) -> Tokenizer:
    pre = said("ggml.pre") or "default"
    if pre not in SPLITS:
        raise CheckpointError(
            f"{place}: tokenizer.ggml.pre {pre!r} is not supported; supported: {', '.join(SPLITS)}"
        )
    merges: list[tuple[str, str]] = []
    for merge in said("ggml.merges", ()):
        left, space, right = str(merge).partition(" ")
        if not space or " " in right:
            raise CheckpointError(
                f"{place}: tokenizer.ggml.merges has {merge!r}, wanted pairs to merge; fetch the "
                "file again"
            )
        merges.append((left, right))
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(numbers, merges, ignore_merges=pre in WHOLE_WORDS))
    split = SPLITS[pre]
    before = [] if split is None else [pre_tokenizers.Split(Regex(split), behavior="isolated")]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _surround(
    tokenizer: Tokenizer, words: Sequence[str], first: str | None, last: str | None
) -> None:
    """Set the tokens that encoding adds before and after a text."""
    ends = [end for end in (first, last) if end is not None]
    if ends:
        text = " ".join([*([first] if first else []), "$A", *([last] if last else [])])
        known = [(end, words.index(end)) for end in dict.fromkeys(ends)]
        tokenizer.post_processor = processors.TemplateProcessing(single=text, special_tokens=known)
