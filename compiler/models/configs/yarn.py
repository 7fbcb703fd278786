"""Reads YaRN from a config: a scaling of rotary frequencies for long contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxc.compiler.models.configs.fields import ConfigFields


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN scaling of the rotary frequencies (https://arxiv.org/abs/2309.00071).

    `attention_factor` multiplies cos and sin; defaults are resolved already.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
    truncate: bool
    attention_factor: float


def read_yarn(rope: ConfigFields) -> YarnScaling:
    """Read a rope of type yarn, with the defaults of transformers (5.23)."""
    factor = rope.number("factor")
    return YarnScaling(
        factor=factor,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        original_max_position_embeddings=rope.size("original_max_position_embeddings"),
        truncate=rope.flag("truncate", True),
        attention_factor=_attention_factor(rope, factor),
    )


def yarn_attention(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's default factor of cos and sin where frequencies are divided by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _attention_factor(rope: ConfigFields, factor: float) -> float:
    if rope.raw("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        whole = yarn_attention(factor, rope.number("mscale_all_dim"))
        return yarn_attention(factor, rope.number("mscale")) / whole
    return yarn_attention(factor)
