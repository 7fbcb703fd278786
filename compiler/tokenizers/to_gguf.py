"""Converts a checkpoint's tokenizer to GGUF metadata: tokens, types, merges or scores, template.

A tokenizer that llama.cpp cannot reproduce is not written, and a note has the reason. Source: gguf
0.19.0 (constants.py, vocab.py), llama.cpp src/llama-vocab.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.checkpoints.files.safetensors import GENERATION_CONFIG, read_json
from mxc.compiler.tokenizers.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    scores_of,
)
from mxc.compiler.tokenizers.splits import FORMS, MORE_ENDS, NORMALIZER_KEY, name_of
from mxc.errors import CheckpointError

#: Metadata key -> (field of the token in tokenizer_config.json, of its number in config.json).
_NAMED = {
    "bos": ("bos_token", "bos_token_id"),
    "eos": ("eos_token", "eos_token_id"),
    "unknown": ("unk_token", "unk_token_id"),
    "padding": ("pad_token", "pad_token_id"),
}


#: Largest number of tokens; no vocabulary has more.
_MOST = 1 << 24

#: Note on tokenizers that put a space before a text, but not after control tokens.
_FIRST = "the tokenizer puts a space before a text; llama.cpp puts one after each control token too"


class NotWrittenError(Exception):
    """The reason why a tokenizer cannot be expressed in a GGUF."""


def metadata(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metadata of the tokenizer in `folder`, and notes.

    Without a tokenizer, the metadata are the ids of special tokens. Raises CheckpointError for
    damaged files.
    """
    notes: list[str] = []
    try:
        if not (folder / TOKENIZER).is_file():
            reason = f"there is no {TOKENIZER}, and so no tokenizer in the file"
            notes.append(f"{reason}; llama.cpp wants one")
            found = _meanings(folder, config)
        else:
            try:
                found = _metadata(folder, config)
                notes += [_FIRST] if _only_first(folder) else []
                if forms := found.get(NORMALIZER_KEY):
                    notes.append(
                        f"the tokenizer brings text to {forms} first; llama.cpp takes it as it is"
                    )
            except NotWrittenError as reason:
                notes.append(f"the tokenizer is not in the file: {reason}; llama.cpp wants one")
                found = _meanings(folder, config)
        ends, more = _ends(folder, config, found)
        found, notes = found | ends, notes + more
    except (
        AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{folder / TOKENIZER}: is no tokenizer ({error!r}); fetch it again"
        ) from error
    return found, tuple(notes)


def _meanings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of special tokens from the configs."""
    found = _settings(folder, {}, config, {}).items()
    return {f"tokenizer.{key}": value for key, value in found if key.endswith("_token_id")}


def _ends(
    folder: Path, config: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[dict[str, int], list[str]]:
    """Return the end tokens beside the first, as far as GGUF has keys, and notes."""
    ends = _json(folder / GENERATION_CONFIG).get("eos_token_id") or config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    kept = found.get("tokenizer.ggml.eos_token_id")
    others = [int(end) for end in ends if end is not None and end != kept]
    keys = [f"tokenizer.ggml.{name}_token_id" for name in MORE_ENDS]
    notes = []
    if left := others[len(keys) :]:
        notes.append(f"a text ends with {', '.join(map(str, left))} too; GGUF has no more keys")
    return dict(zip(keys, others, strict=False)), notes


def _metadata(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    raw = read_json(folder / TOKENIZER)
    model = raw["model"]
    if model.get("type") != "BPE":
        raise NotWrittenError(f"its model is {model.get('type')}, wanted BPE")
    numbers: dict[str, int] = {str(word): int(number) for word, number in model["vocab"].items()}
    added = {str(each["content"]): each for each in raw.get("added_tokens") or ()}
    numbers |= {word: int(each["id"]) for word, each in added.items()}
    merges = [_pair(merge) for merge in model["merges"]]
    words, types = _tokens(numbers, added, model.get("unk_token"), config.get("vocab_size"))
    found: dict[str, Any] = {"ggml.tokens": words, "ggml.token_type": types}
    if model.get("byte_fallback"):
        found |= _sentencepiece(raw, {word: n for n, word in enumerate(words)}, merges)
    else:
        found |= {"ggml.model": "gpt2", "ggml.pre": _split(raw), "ggml.merges": _texts(merges)}
    found |= _settings(folder, raw, config, numbers)
    metadata = {f"tokenizer.{key}": value for key, value in found.items()}
    if not model.get("byte_fallback"):
        metadata[NORMALIZER_KEY] = " ".join(_forms(raw))
    return metadata


def _forms(raw: Mapping[str, Any]) -> list[str]:
    """Return the Unicode forms by which text is normalized before splitting."""
    kinds = [step["type"] for step in _steps(raw.get("normalizer"), "normalizers")]
    if not {*kinds} <= {*FORMS}:
        raise NotWrittenError(f"it changes text by {', '.join(kinds)}")
    return kinds


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return str(left), str(right)


def _texts(merges: list[tuple[str, str]]) -> list[str]:
    if any(" " in part for merge in merges for part in merge):
        raise NotWrittenError("a merge has a space in it")
    return [f"{left} {right}" for left, right in merges]


def _tokens(
    numbers: Mapping[str, int], added: Mapping[str, Any], unknown: Any, size: Any
) -> tuple[list[str], list[int]]:
    """Return tokens and types by number; numbers without a token get a placeholder."""
    count = max(numbers.values(), default=-1) + 1
    if min(numbers.values(), default=0) < 0 or count > _MOST:
        raise ValueError(f"tokens are numbered up to {count - 1}")
    if type(size) is int:
        if not 0 < count <= size:
            raise NotWrittenError(f"it has {count} tokens, the model {size}")
        count = size
    words, types = [f"[PAD{number}]" for number in range(count)], [UNUSED] * count
    for word, number in numbers.items():
        words[number], types[number] = word, NORMAL
        if word == unknown:
            types[number] = UNKNOWN
        elif word in added:
            types[number] = CONTROL if added[word].get("special") else USER_DEFINED
        elif len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
            types[number] = BYTE
    if len({*words}) != count:
        raise NotWrittenError("two of its tokens have the same text or the same number")
    return words, types


def _steps(part: Any, inside: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, with sequences flattened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for each in part[inside] for step in _steps(each, inside)]
    return [part]


def _split(raw: Mapping[str, Any]) -> str:
    steps = _steps(raw.get("pre_tokenizer"), "pretokenizers")
    pattern = None
    if len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
        split = steps.pop(0)
        plain = split["behavior"] == "Isolated" and not split.get("invert")
        pattern = split["pattern"].get("Regex", "") if plain else ""
    if len(steps) != 1 or steps[0]["type"] != "ByteLevel" or steps[0].get("add_prefix_space"):
        raise NotWrittenError("it splits text in a way that is not byte-level BPE's")
    if (pattern is None) != bool(steps[0].get("use_regex", True)) or name_of(pattern) is None:
        raise NotWrittenError(f"llama.cpp has no name for its way to split text, {pattern!r}")
    return str(name_of(pattern))


def _sentencepiece(
    raw: Mapping[str, Any], numbers: dict[str, int], merges: list[tuple[str, str]]
) -> dict[str, Any]:
    steps = _steps(raw.get("normalizer"), "normalizers")
    before = _steps(raw.get("pre_tokenizer"), "pretokenizers")
    prefix = False
    if before and before[0]["type"] == "Metaspace" and len(before) == 1 and not steps:
        scheme = before[0].get("prepend_scheme", "always")
        if before[0].get("replacement") != SPACE or before[0].get("split", True):
            raise NotWrittenError("it splits words before it merges")
        prefix = scheme != "never"
    else:
        kinds = [step["type"] for step in steps]
        if before or kinds not in (["Prepend", "Replace"], ["Replace"]):
            raise NotWrittenError(f"it changes text by {', '.join(kinds) or 'nothing'}")
        prefix = len(kinds) == 2
    scores = scores_of(numbers, merges)
    if scores is None:
        raise NotWrittenError("its merges are no order of its pieces, which sentencepiece's are")
    return {"ggml.model": "llama", "ggml.scores": scores, "ggml.add_space_prefix": prefix}


def _only_first(folder: Path) -> bool:
    before = _steps(read_json(folder / TOKENIZER).get("pre_tokenizer"), "pretokenizers")
    return [step.get("prepend_scheme") for step in before] == ["first"]


def _settings(
    folder: Path, raw: Mapping[str, Any], config: Mapping[str, Any], numbers: Mapping[str, int]
) -> dict[str, Any]:
    """Return the ids of special tokens, whether they are added to a text, and the chat template."""
    settings = _json(folder / TOKENIZER_CONFIG)
    generation = _json(folder / GENERATION_CONFIG)
    found: dict[str, Any] = {}
    for key, (token, number) in _NAMED.items():
        word = settings.get(token)
        word = word.get("content") if isinstance(word, dict) else word
        value = numbers.get(str(word))
        for said in (config, generation):
            value = said.get(number) if value is None else value
        value = value[0] if isinstance(value, list) and value else value
        if type(value) is int:
            found[f"ggml.{key}_token_id"] = value
    surroundings = json.dumps(raw.get("post_processor"))
    for end in ("bos", "eos"):
        meant = found.get(f"ggml.{end}_token_id")
        there = any(json.dumps(w) in surroundings for w, n in numbers.items() if n == meant)
        found[f"ggml.add_{end}_token"] = bool(settings.get(f"add_{end}_token", there)) or there
    template = settings.get("chat_template")
    if (folder / CHAT_TEMPLATE).is_file():
        template = (folder / CHAT_TEMPLATE).read_text()
    if isinstance(template, str):
        found["chat_template"] = template
    return found


def _json(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}
