"""Extracts the language model of a checkpoint: its config and tensors, without any wrapper.

    {"model_type": "mistral3", "text_config": {"model_type": "mistral", ..}, "vision_config": ..}

    language_model.model.layers.0.mlp..    ->   model.layers.0.mlp..
    language_model.lm_head.weight          ->   lm_head.weight
    vision_tower..                         ->   not compiled: a note says so

Wrappers name their parts differently from one library and version to the next. The language model
is therefore found by its tensors: an embedding with layers under the same prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.source import CheckpointSource, language_config
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.decoder import EMBEDDING, HEAD, Decoder
from mxc.errors import CheckpointError

_EMBEDDING, _HEAD = EMBEDDING.removeprefix("model."), "lm_head."

#: Fields that the wrapper may state too. The wrapper's value of a shared field takes precedence, as
#: in transformers 5.23; an inherited field is used where the inner config has none.
_SHARED = ("tie_word_embeddings",)
_INHERITED = ("eos_token_id", "bos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A model, its tensors under the model's names, and notes for the user."""

    decoder: Decoder
    source: CheckpointSource
    notes: tuple[str, ...] = ()


def read_language_model(source: CheckpointSource) -> LanguageModel:
    """Return the language model of a checkpoint in safetensors.

    Raises CheckpointError for an unsupported architecture of the model or of the language model
    inside a wrapper, and where the tensors of the language model are not found.
    """
    place = str(source.path / CONFIG)
    found = language_config(source.config)
    if found is None:
        return LanguageModel(decoder=read_decoder(source.config, place), source=source)
    key, inner = found
    config = _config(source.config, inner, source)
    decoder = read_decoder(config, f"{place} ({key})")
    stem = _stem(source)
    kept: dict[str, CanonicalTensor] = {}
    others: Counter[str] = Counter()
    for name, tensor in source.tensors.items():
        ours = _unwrapped(name, stem)
        if ours is None:
            others[_part(name)] += 1
        else:
            kept[ours] = tensor.renamed(ours)
    rest = ", ".join(f"{count} tensors of {part}" for part, count in sorted(others.items()))
    note = (
        f"the checkpoint is a {source.config.get('model_type')}: its language model, a "
        f"{decoder.architecture}, is compiled; not compiled: {rest or 'nothing'}"
    )
    return LanguageModel(decoder=decoder, source=replace(source, tensors=kept), notes=(note,))


def _config(
    outer: Mapping[str, Any], inner: Mapping[str, Any], source: CheckpointSource
) -> dict[str, Any]:
    """Return the config of the language model, with fields that only the wrapper states."""
    config = {key: value for key, value in inner.items() if key != "architectures"}
    for key in _SHARED:
        if outer.get(key) is not None:
            config[key] = outer[key]
    for key in _INHERITED:
        if config.get(key) is None and outer.get(key) is not None:
            config[key] = outer[key]
    # The defaults of wrappers differ; a model without a stored head is tied to its embedding.
    head = any(name.endswith(f"{_HEAD}weight") for name in source.tensors)
    config.setdefault("tie_word_embeddings", not head)
    return config


def _stem(source: CheckpointSource) -> str:
    """Return the prefix of the names of the language model's layers."""
    stems = {n.removesuffix(_EMBEDDING) for n in source.tensors if n.endswith(_EMBEDDING)}
    names = tuple(source.tensors)
    found = sorted(s for s in stems if any(name.startswith(f"{s}layers.0.") for name in names))
    if len(found) == 1:
        return found[0]
    what = f"found those of {', '.join(found)}" if found else "found none"
    raise CheckpointError(
        f"{source.path}: wanted the tensors of one language model, an {_EMBEDDING} with layers.0 "
        f"beside it; {what}; fetch the checkpoint again"
    )


def _unwrapped(name: str, stem: str) -> str | None:
    """Return the name of a tensor in the language model; None for tensors outside of it."""
    if name.startswith(stem):
        return f"model.{name.removeprefix(stem)}"
    # The head is beside the model, or beside one of its parents.
    while stem:
        stem = stem.rstrip(".").rpartition(".")[0]
        stem = f"{stem}." if stem else ""
        if name.startswith(f"{stem}{_HEAD}"):
            return name.removeprefix(stem)
    return None


def _part(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "model" else first


def settle_head(decoder: Decoder, source: CheckpointSource) -> LanguageModel:
    """Resolve the head of a model whose config ties it to the embedding.

    A stored head that equals the embedding is left out. A stored head that differs is used as the
    head. A stored head without a stored embedding is used as the embedding too. All as in
    transformers 5.23 (PreTrainedModel.tie_weights).
    """
    head, embedding = source.tensors.get(HEAD), source.tensors.get(EMBEDDING)
    as_it_is = LanguageModel(decoder=decoder, source=source)
    if not decoder.tied or head is None:
        return as_it_is
    rest = {name: tensor for name, tensor in source.tensors.items() if name != HEAD}
    if embedding is None:
        rest[EMBEDDING] = head.renamed(EMBEDDING)
        return replace(as_it_is, source=replace(source, tensors=rest))
    if _same(head, embedding):
        note = f"{HEAD} is the embedding once more, as config.json says: it is left out"
        return LanguageModel(decoder=decoder, source=replace(source, tensors=rest), notes=(note,))
    note = (
        f"config.json says that the head is the embedding; {HEAD} is {head.format} and "
        f"{EMBEDDING} {embedding.format}, and their numbers differ: the head is {HEAD}"
    )
    return LanguageModel(decoder=replace(decoder, tied=False), source=source, notes=(note,))


def _same(head: CanonicalTensor, embedding: CanonicalTensor) -> bool:
    """Whether two tensors have equal format, shape and bytes; reads a few MiB at a time."""
    if (head.format, head.shape) != (embedding.format, embedding.shape):
        return False
    pairs = zip(head.pieces(), embedding.pieces(), strict=True)
    return all((one.elements == other.elements).all() for one, other in pairs)
