"""Rotary position tables: what config.json says of them, and their numbers.

Sources: transformers' modeling_rope_utils.py (5.23) and, of YaRN, Peng et al., "YaRN" (arXiv
2309.00071): frequencies below `beta_slow` turns over the original context are divided by the
factor, those above `beta_fast` kept, with a linear ramp between; cos and sin carry the attention
factor. Llama 3.1 does alike with other borders and a ramp over the wavelengths.

The tables are computed here, once, and packed with the weights: the program has no cosine, whose
error at large angles differs from target to target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.configs.yarn import YarnScaling, read_yarn


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """All frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Frequencies of wavelengths beyond the original context divided by `factor`, with a ramp."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class Divisors:
    """Each frequency divided by a number of its own, as the checkpoint has them."""

    numbers: tuple[float, ...]


Scaling = LinearScaling | Llama3Scaling | YarnScaling | Divisors


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions: the base of the frequencies, and how they are scaled (None: not)."""

    theta: float
    scaling: Scaling | None = None


def read_rope(fields: Fields, *, theta: float = 10000.0) -> Rope:
    """What a config says: `rope_parameters`, or `rope_scaling` and `rope_theta` as before.

    `theta` is the architecture's default. Raises CheckpointError for a type that is not known,
    for fields that it does not have, and where the two spellings disagree.
    """
    new, old = fields.inner("rope_parameters"), fields.inner("rope_scaling")
    if (
        new is not None
        and old is not None
        and fields.raw("rope_parameters") != fields.raw("rope_scaling")
    ):
        raise fields.refuse("rope_scaling", "what rope_parameters says", fields.raw("rope_scaling"))
    base = fields.number("rope_theta", theta)
    rope = new or old
    if rope is None:
        return Rope(theta=base)
    if rope.raw("rope_theta") is not None:
        inner = rope.number("rope_theta")
        if fields.raw("rope_theta") is not None and inner != base:
            raise fields.refuse("rope_theta", f"the {inner} of rope_parameters", base)
        base = inner
    if rope.raw("type") is not None and rope.raw("rope_type") not in (None, rope.raw("type")):
        raise rope.refuse("type", f"the {rope.raw('rope_type')!r} of rope_type", rope.raw("type"))
    key = "type" if rope.raw("rope_type") is None else "rope_type"
    kind = rope.known(key, ("default", "linear", "llama3", "yarn"))
    rope.known("partial_rotary_factor", (1, 1.0), 1.0)
    scaling: Scaling | None = None
    if kind == "linear":
        scaling = LinearScaling(factor=rope.number("factor"))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=rope.size("original_max_position_embeddings"),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise rope.refuse(
                "low_freq_factor",
                f"less than high_freq_factor = {scaling.high_freq_factor}",
                scaling.low_freq_factor,
            )
    elif kind == "yarn":
        scaling = read_yarn(rope)
    rope.finish()
    return Rope(theta=base, scaling=scaling)


def frequencies(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    """Angular frequencies, radians a token: f32 [head_dim / 2].

    In f32, in the order in which the reference computes: the last bit of a frequency is multiplied
    by the position.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    wavelengths = np.power(np.float32(rope.theta), exponents)
    plain: NDArray[np.float32] = np.float32(1.0) / wavelengths
    match rope.scaling:
        case LinearScaling(factor=factor):
            return plain / np.float32(factor)
        case Divisors(numbers=numbers):
            divisors: NDArray[np.float32] = np.array(numbers, np.float32)
            return plain / divisors
        case Llama3Scaling() as scaling:
            return _llama3(scaling, plain)
        case YarnScaling() as scaling:
            return _yarn(scaling, rope.theta, head_dim, wavelengths)
    return plain


def _llama3(scaling: Llama3Scaling, plain: NDArray[np.float32]) -> NDArray[np.float32]:
    context = scaling.original_max_position_embeddings
    low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
    waves = np.float32(2 * math.pi) / plain
    factor = np.float32(scaling.factor)
    ramp = (np.float32(context) / waves - low) / (high - low)
    smooth = (np.float32(1) - ramp) * plain / factor + ramp * plain
    far, near = waves > np.float32(context / low), waves < np.float32(context / high)
    mixed: NDArray[np.float32] = np.where(far, plain / factor, np.where(near, plain, smooth))
    return mixed


def _yarn(
    rope: YarnScaling, theta: float, head_dim: int, wavelengths: NDArray[np.float32]
) -> NDArray[np.float32]:
    def correction(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    plain = np.float32(1.0) / wavelengths
    stretched = np.float32(1.0) / (np.float32(rope.factor) * wavelengths)
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    mixed: NDArray[np.float32] = stretched * (np.float32(1) - keep) + plain * keep
    return mixed


def tables(
    rope: Rope, head_dim: int, positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cos, sin) of every position times every frequency: f32 [positions, head_dim / 2] each."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies(rope, head_dim)
    # float64 inside, so that the table is the correctly rounded value on every machine.
    wide = angles.astype(np.float64)
    scaling = rope.scaling
    factor = np.float32(scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0)
    return np.cos(wide).astype(np.float32) * factor, np.sin(wide).astype(np.float32) * factor
