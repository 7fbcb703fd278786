"""Rotary embeddings: reads their parameters from config.json and computes the tables.

Sources: transformers' modeling_rope_utils.py (5.23) and, for YaRN, Peng et al., "YaRN" (arXiv
2309.00071). YaRN divides frequencies with less than `beta_slow` rotations over the original context
by the factor, and keeps those with more than `beta_fast`, with a linear ramp between; cos and sin
include the attention factor. Llama 3.1 does the same with other bounds and a ramp over the
wavelengths. LongRoPE divides each frequency by its own divisor, from one of two lists that is
chosen by the maximum sequence length.

The tables are computed here once and packed with the weights. The program computes no cosine,
because its error at large angles differs between targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.longrope import LongropeScaling, read_longrope
from mxc.compiler.models.configs.yarn import YarnScaling, read_yarn


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """All frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Frequencies with wavelengths beyond the original context divided by `factor`, with a ramp."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class Divisors:
    """Each frequency divided by its own divisor, from a tensor of the checkpoint."""

    numbers: tuple[float, ...]


#: Names of the two kinds of layers in `layer_types`.
SLIDING, FULL = "sliding_attention", "full_attention"

Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongropeScaling | Divisors


@dataclass(frozen=True, kw_only=True)
class Rope:
    """A rotary embedding: the base `theta` of the frequencies, and their scaling, if any.

    `fraction`: the fraction of a head that is rotated, its first elements. `interleaved`: real and
    imaginary parts alternate; else all real parts come first. `proportional`: frequencies and parts
    are placed as if the whole head were rotated, and frequencies beyond `fraction` are zero
    (transformers' "proportional").
    """

    theta: float
    scaling: Scaling | None = None
    fraction: float = 1.0
    interleaved: bool = False
    proportional: bool = False

    def spread(self, head_dim: int) -> int:
        """Return the number of elements over which frequencies are spread; it may be odd."""
        if self.proportional:
            return 2 * int(self.fraction * head_dim // 2)
        return int(head_dim * self.fraction)

    def rotated(self, head_dim: int) -> int:
        """Return the number of rotated elements of a head: whole pairs, so `spread` rounded up."""
        dims = self.spread(head_dim)
        return dims + dims % 2

    def distance(self, head_dim: int) -> int:
        """Elements from the real part of a pair to the imaginary part; 1: they alternate."""
        if self.interleaved:
            return 1
        return head_dim // 2 if self.proportional else self.rotated(head_dim) // 2


def part_of(rotated: int, head_dim: int) -> float:
    """Return the `fraction` of a Rope whose `spread` is `rotated` elements.

    The quotient may be rounded down: 88 * (60 / 88) is less than 60.
    """
    part = rotated / head_dim
    return part if int(head_dim * part) == rotated else math.nextafter(part, 2.0)


def read_rope(
    fields: ConfigFields,
    *,
    theta: float = 10000.0,
    fraction: float | None = None,
    interleaved: bool = False,
    beside: Sequence[str] = (),
) -> Rope:
    """Read the rotary embedding of a config: `rope_parameters`, or the older `rope_scaling` and
    `rope_theta`.

    theta, fraction: the architecture's defaults of rope_theta and partial_rotary_factor; fraction
    None means that whole heads are always rotated. beside: fields of `rope_parameters` that do not
    concern rotary embeddings. Raises CheckpointError for an unknown type, for fields that the type
    does not have, and where the two spellings disagree.
    """
    new, old = fields.inner("rope_parameters"), fields.inner("rope_scaling")
    if (
        new is not None
        and old is not None
        and fields.raw("rope_parameters") != fields.raw("rope_scaling")
    ):
        raise fields.refuse("rope_scaling", "what rope_parameters says", fields.raw("rope_scaling"))
    base = fields.number("rope_theta", theta)
    part = fields.number("partial_rotary_factor", fraction or 1.0)
    rope = new or old
    if rope is not None:
        rope.inert(*beside)
        base = _agreed(fields, rope, "rope_theta", base)
        part = _agreed(fields, rope, "partial_rotary_factor", part)
    if part > 1 or (fraction is None and part != 1):
        wanted = "1 (whole heads)" if fraction is None else "at most 1"
        raise fields.refuse("partial_rotary_factor", wanted, part)
    scaling = None if rope is None else _read_scaling(rope, fields)
    return Rope(theta=base, scaling=scaling, fraction=part, interleaved=interleaved)


def read_ropes(
    fields: ConfigFields, kinds: Sequence[str], *, theta: Mapping[str, float]
) -> dict[str, Rope]:
    """Read the rotary embedding of each of the `kinds` of layers, where they differ.

    `rope_parameters` has an object for each kind. In older configs, `rope_theta` and `rope_scaling`
    are those of full attention, and sliding layers have `rope_local_base_freq` and no scaling.
    theta: the architecture's default for each kind. Raises CheckpointError as read_rope does.
    """
    new = fields.inner("rope_parameters")
    if new is None or not any(kind in new.names() for kind in theta):
        local = fields.number("rope_local_base_freq", theta[SLIDING])
        ropes = {FULL: read_rope(fields, theta=theta[FULL]), SLIDING: Rope(theta=local)}
        return {kind: ropes[kind] for kind in kinds}
    found = {}
    for kind in theta:
        inner = new.inner(kind)
        if inner is None:
            found[kind] = Rope(theta=theta[kind])
            continue
        proportional = inner.raw("rope_type") == "proportional"
        # transformers has no default of the base here.
        base, part = inner.number("rope_theta", None if proportional else theta[kind]), 1.0
        if proportional:
            part = inner.number("partial_rotary_factor", 1.0)
        if part > 1:
            raise inner.refuse("partial_rotary_factor", "at most 1", part)
        scaling = _read_scaling(inner, fields, known=("proportional",))
        found[kind] = Rope(theta=base, scaling=scaling, fraction=part, proportional=proportional)
    new.finish()
    return {kind: found[kind] for kind in kinds}


def _agreed(fields: ConfigFields, rope: ConfigFields, key: str, outer: float) -> float:
    """Return the number `key` of `rope`, or `outer` where it has none.

    Raises CheckpointError where `fields` states another number.
    """
    if rope.raw(key) is None:
        return outer
    inner = rope.number(key)
    if fields.raw(key) is not None and inner != outer:
        raise fields.refuse(key, f"the {inner} of rope_parameters", outer)
    return inner


def _read_scaling(
    rope: ConfigFields, outer: ConfigFields, known: tuple[str, ...] = ()
) -> Scaling | None:
    """Read the scaling of frequencies; known: further types that the architecture has."""
    # transformers writes the rope_type "default" beside the older type "mrope".
    same = (None, "default" if rope.raw("type") == "mrope" else rope.raw("type"), rope.raw("type"))
    if rope.raw("type") is not None and rope.raw("rope_type") not in same:
        raise rope.refuse("type", f"the {rope.raw('rope_type')!r} of rope_type", rope.raw("type"))
    key = "type" if rope.raw("rope_type") is None else "rope_type"
    types = ("default", "linear", "llama3", "yarn", "longrope", "su", "mrope", *known)
    kind = rope.known(key, types)
    # mrope assigns frequencies to positions in time, height and width. For text the three are equal
    # and mrope is the plain rotary embedding (transformers' models/qwen3_vl).
    _ = rope.raw("mrope_section"), rope.raw("mrope_interleaved")
    scaling: Scaling | None = None
    if kind == "linear" or (kind == "proportional" and rope.number("factor", 1.0) != 1):
        scaling = LinearScaling(factor=rope.number("factor"))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=rope.size("original_max_position_embeddings"),
        )
        if scaling.low_freq_factor > scaling.high_freq_factor:
            raise rope.refuse(
                "low_freq_factor",
                f"at most high_freq_factor = {scaling.high_freq_factor}",
                scaling.low_freq_factor,
            )
    elif kind == "yarn":
        scaling = read_yarn(rope)
    elif kind in ("longrope", "su"):  # "su" is its older name
        scaling = read_longrope(rope, outer)
    rope.finish()
    return scaling


def frequencies(
    rope: Rope, dims: int, length: int = 0, whole: int | None = None
) -> NDArray[np.float32]:
    """Return angular frequencies, radians per token, of `dims` rotated elements: f32 [dims / 2],
    rounded up.

    length: tokens of the longest sequence, which selects LongRoPE's factors. whole: elements of the
    head that define the exponents, by default `dims`. All operations are in f32 and in the order of
    the reference, because an error in the last bit of a frequency is multiplied by the position.
    """
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(whole or dims)
    wavelengths = np.power(np.float32(rope.theta), exponents)
    plain: NDArray[np.float32] = np.float32(1.0) / wavelengths
    match rope.scaling:
        case LinearScaling(factor=factor):
            return plain / np.float32(factor)
        case Divisors(numbers=numbers):
            divisors: NDArray[np.float32] = np.array(numbers, np.float32)
            return plain / divisors
        case LongropeScaling() as scaling:
            wavelengths = np.array(scaling.divisors(length), np.float32) * wavelengths
            scaled: NDArray[np.float32] = np.float32(1.0) / wavelengths
            return scaled
        case Llama3Scaling() as scaling:
            return _llama3(scaling, plain)
        case YarnScaling() as scaling:
            return _yarn(scaling, rope.theta, dims, wavelengths)
    return plain


def divisors(rope: Rope, dims: int) -> NDArray[np.float32]:
    """Return the divisors that turn plain frequencies into those of `rope`: f32 [dims / 2].

    Division rounds, so each divisor is the neighbouring f32 whose quotient is the nearest.
    """
    plain = frequencies(Rope(theta=rope.theta), dims)
    wanted = frequencies(rope, dims)
    nearest: NDArray[np.float32] = plain / wanted
    up, down = (np.nextafter(nearest, np.float32(end)) for end in (np.inf, 0))
    for other in (up, down):
        nearer = np.abs(plain / other - wanted) < np.abs(plain / nearest - wanted)
        nearest = np.where(nearer, other, nearest)
    return nearest


def _llama3(scaling: Llama3Scaling, plain: NDArray[np.float32]) -> NDArray[np.float32]:
    context = scaling.original_max_position_embeddings
    low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
    waves = np.float32(2 * math.pi) / plain
    factor = np.float32(scaling.factor)
    far, near = waves > np.float32(context / low), waves < np.float32(context / high)
    if low == high:  # Llama 4 Scout: no ramp
        return np.where(far, plain / factor, plain)
    ramp = (np.float32(context) / waves - low) / (high - low)
    smooth = (np.float32(1) - ramp) * plain / factor + ramp * plain
    mixed: NDArray[np.float32] = np.where(far, plain / factor, np.where(near, plain, smooth))
    return mixed


def _yarn(
    rope: YarnScaling, theta: float, dims: int, wavelengths: NDArray[np.float32]
) -> NDArray[np.float32]:
    def correction(rotations: float) -> float:
        period = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dims * math.log(period) / (2 * math.log(theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    plain = np.float32(1.0) / wavelengths
    stretched = np.float32(1.0) / (np.float32(rope.factor) * wavelengths)
    ramp = (np.arange(dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    mixed: NDArray[np.float32] = stretched * (np.float32(1) - keep) + plain * keep
    return mixed


def tables(
    rope: Rope, head_dim: int, length: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (cos, sin) of every position times every frequency: f32 [length, R] each.

    R is half of the number of rotated elements. length: see `frequencies`.
    """
    angles = np.arange(length, dtype=np.float32)[:, None]
    whole = head_dim if rope.proportional else None
    angles = angles * frequencies(rope, rope.spread(head_dim), length, whole)
    # Computed in float64, so that the rounded table is the same on every machine.
    wide = angles.astype(np.float64)
    scaling, factor = rope.scaling, np.float32(1.0)
    if isinstance(scaling, YarnScaling | LongropeScaling):
        factor = np.float32(scaling.attention_factor)
    return np.cos(wide).astype(np.float32) * factor, np.sin(wide).astype(np.float32) * factor
