"""Reads LongRoPE from a config: the scaling of rotary frequencies of Phi-3, Phi-3.5 and Phi-4."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxc.compiler.models.configs.fields import ConfigFields
from mxc.errors import CheckpointError

#: The field of the context that a model was trained with before its extension.
ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, kw_only=True)
class LongropeScaling:
    """Each frequency divided by its own divisor (https://arxiv.org/abs/2402.13753).

    The divisors are `long` where sequences may be longer than `original_max_position_embeddings`,
    else `short`. `attention_factor` multiplies cos and sin in both cases.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float

    def divisors(self, length: int) -> tuple[float, ...]:
        """Return the divisors for sequences of up to `length` tokens."""
        return self.long if length > self.original_max_position_embeddings else self.short


def read_longrope(rope: ConfigFields, outer: ConfigFields) -> LongropeScaling:
    """Read a rope of type longrope, with the defaults of transformers (5.23).

    outer: the config around it, which states the maximum context and may state the original one.
    """
    original = rope.size(ORIGINAL) if rope.raw(ORIGINAL) is not None else outer.size(ORIGINAL)
    if outer.raw(ORIGINAL) not in (None, original):
        raise outer.refuse(ORIGINAL, f"the {original} of the scaling", outer.raw(ORIGINAL))
    longest = outer.size("max_position_embeddings")
    factor = rope.number("factor", longest / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongropeScaling(
        short=_numbers(rope, "short_factor"),
        long=_numbers(rope, "long_factor"),
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", default),
    )


def require_pairs(scaling: LongropeScaling, pairs: int, place: str) -> None:
    """Raise CheckpointError where there is not one divisor for each rotary pair."""
    for name in ("short", "long"):
        found = len(getattr(scaling, name))
        if found != pairs:
            raise CheckpointError(
                f"{place}: {name}_factor of longrope has {found} numbers, wanted one for each of "
                f"{pairs} pairs of rotated dimensions; fetch config.json again"
            )


def _numbers(rope: ConfigFields, key: str) -> tuple[float, ...]:
    value = rope.raw(key)
    numbers = value if isinstance(value, list) else []
    valid = all(type(n) in (int, float) and 0 < n < math.inf for n in numbers)
    if not numbers or not valid:
        raise rope.refuse(key, "a list of positive numbers", value)
    return tuple(float(n) for n in numbers)
