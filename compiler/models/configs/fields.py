"""Checked reads of config.json; fields that an architecture does not know are refused by name.

An architecture reads the fields that it knows. `finish` refuses all other fields, because an unread
field might change what the model computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from mxc.errors import CheckpointError

#: Fields that do not affect what the model computes: of training, generation, files, and of
#: transformers itself (PreTrainedConfig and the defaults of GenerationConfig, 5.23).
INERT = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout",
    "auto_map", "bos_token_id", "cache_implementation", "decoder_start_token_id", "dtype",
    "eos_token_id",
    "finetuning_task", "id2label", "initializer_range", "is_encoder_decoder", "label2id",
    "max_length", "model_type", "name_or_path", "num_labels", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
    "problem_type", "quantization_config", "return_dict", "router_aux_loss_coef",
    "router_jitter_noise", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_cache", "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "max_new_tokens", "min_length", "num_beams", "num_beam_groups", "num_return_sequences",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "early_stopping",
    "diversity_penalty", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "output_scores", "return_dict_in_generate",
})  # fmt: skip

#: Fields of PreTrainedConfig and of published configs (Qwen2.5, SmolLM2) that are inert only with
#: this value. Null is always inert.
_DEFAULTS: dict[str, object] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_llama_config": True,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tf_legacy_loss": False,
    "tie_encoder_decoder": False,
    "use_bfloat16": False,
    "use_mrope": False,
}


class ConfigFields:
    """The fields of a JSON object; `place` names the file in messages.

    `names`: the object's own names of fields, by the usual name under which they are read. Each
    read method raises CheckpointError for a missing field without default, and for a value of
    another type or range.
    """

    def __init__(
        self, raw: dict[str, Any], place: str, names: Mapping[str, str] | None = None
    ) -> None:
        """Wrap an object, all fields unread."""
        self._raw, self._place, self._names = raw, place, names or {}
        self._read: set[str] = set()

    def called(self, names: Mapping[str, str]) -> ConfigFields:
        """Return the same object with these names of fields; what was read stays read."""
        return self._with(self._raw, names)

    def is_null(self, key: str) -> bool:
        """Return whether the field is there and null, which may mean another thing than its
        absence.
        """
        return self._own(key) in self._raw and self.raw(key) is None

    def completed(self, defaults: Mapping[str, Any]) -> ConfigFields:
        """Return the same object with these values of fields that it lacks; what was read stays
        read.
        """
        lacking = {key: value for key, value in defaults.items() if self._raw.get(key) is None}
        return self._with(self._raw | lacking, self._names)

    def _with(self, raw: dict[str, Any], names: Mapping[str, str]) -> ConfigFields:
        found = ConfigFields(raw, self._place, names)
        found._read = self._read
        return found

    def raw(self, key: str) -> Any:
        """Return the unchecked value; None if the field is absent."""
        own = self._own(key)
        self._read.add(own)
        return self._raw.get(own)

    def size(self, key: str, default: int | None = None) -> int:
        """Read a positive integer."""
        value = self._get(key, default)
        if type(value) is not int or value <= 0:
            raise self.refuse(key, "a positive integer", value)
        return value

    def one_of(self, *keys: str) -> int:
        """Read a positive integer under any of several names, which must agree."""
        found = {key: self.size(key) for key in keys if self.raw(key) is not None}
        if not found:
            return self.size(keys[0])
        first, value = next(iter(found.items()))
        for key, other in found.items():
            if other != value:
                raise self.refuse(key, f"the {value} of {first}", other)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Read a positive number."""
        value = self._get(key, default)
        # bool is an int in Python, and True would pass for 1.0.
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.refuse(key, "a positive number", value)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Read a Boolean."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.refuse(key, "true or false", value)
        return value

    def switch(self, key: str, default: bool) -> bool:
        """Read a Boolean; null is false, as transformers takes it, and `default` if absent."""
        return self.flag(key, False if self.is_null(key) else default)

    def token(self, key: str) -> int | None:
        """Read a token id, or None."""
        value = self.raw(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.refuse(key, "a token number or null", value)
        return value

    def tokens(self, key: str) -> tuple[int, ...]:
        """Read a token id or a list of token ids; empty for null."""
        value = self.raw(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise self.refuse(key, "a token number or a list of them", value)
        return tuple(ids)

    def known(self, key: str, supported: tuple[object, ...], default: object = None) -> Any:
        """Read one of the supported values."""
        value = self._get(key, default)
        # 1 == True in Python, so the types are compared too.
        if not any(value == one and type(value) is type(one) for one in supported):
            names = ", ".join(repr(one) for one in supported)
            raise CheckpointError(
                f"{self._place}: {self._own(key)} {value!r} is not supported; supported: {names}"
            )
        return value

    def inner(self, key: str) -> ConfigFields | None:
        """Read a nested object; None if the field is absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "an object or null", value)
        return ConfigFields(value, f"{self._place} ({key})")

    def inert(self, *keys: str) -> None:
        """Mark fields as read that do not affect what this architecture computes."""
        self._read.update(map(self._own, keys))

    def by_layer(
        self, key: str, layers: int, known: Collection[str], default: Mapping[int, dict[str, Any]]
    ) -> list[ConfigFields]:
        """Return the fields of each layer, with the layer's own values of some fields.

        key: a field with an object from layer number to the layer's own values. known: the fields
        that it may set. default: the own values by layer number where the field is absent.
        """
        given = self.inner(key)
        own: dict[int, Any] = dict(default)
        if given is not None:
            # Layer numbers have leading zeros: "05" of 30.
            own = {int(name): given.raw(name) for name in given.names() if name.isdecimal()}
            given.finish()
        said = [one for one in own.values() if one is not None]
        if not {*own} <= {*range(layers)} or not all(
            isinstance(one, dict) and {*one} <= {*known} for one in said
        ):
            raise self.refuse(key, f"{' and '.join(known)} of layers", self._raw[key])
        found = [
            ConfigFields(self._raw | (own.get(number) or {}), self._place)
            for number in range(layers)
        ]
        for fields in found:
            fields._read = self._read
        return found

    def names(self) -> tuple[str, ...]:
        """Return the names of all fields, as the object spells them."""
        return tuple(self._raw)

    def finish(self) -> None:
        """Raise CheckpointError for the first field that was not read and may mean something."""
        for key, value in self._raw.items():
            default = key in _DEFAULTS and value == _DEFAULTS[key]
            if key in self._read or key in INERT or default or value is None:
                continue
            raise CheckpointError(
                f"{self._place}: field {key} = {value!r} is not known for this architecture, and "
                "might change what the model computes; remove it if it does not"
            )

    def refuse(self, key: str, wanted: str, found: object) -> CheckpointError:
        """Return the CheckpointError for a wrong value of a field."""
        return CheckpointError(
            f"{self._place}: wanted {wanted} for {self._own(key)}, found {found!r}"
        )

    def _own(self, key: str) -> str:
        """Return the object's own name of a field."""
        return self._names.get(key, key)

    def _get(self, key: str, default: Any = None) -> Any:
        value = self.raw(key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(
                f"{self._place}: {self._own(key)} is missing; fetch config.json again, or add the "
                "key"
            )
        return value
