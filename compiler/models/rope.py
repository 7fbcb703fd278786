"""Rotary position tables with YaRN scaling.

Source: Peng et al., "YaRN" (arXiv 2309.00071), as transformers' `_compute_yarn_parameters` computes
it: frequencies below `beta_slow` turns over the original context are divided by the factor, those
above `beta_fast` kept, with a linear ramp between; cos and sin carry the attention factor.

The tables are computed here, once, and packed with the weights: the program has no cosine, whose
error at large angles differs from target to target.
"""

import math

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.gpt_oss_config import YarnScaling


def yarn_frequencies(theta: float, rope: YarnScaling, head_dim: int) -> NDArray[np.float32]:
    """Angular frequencies, radians a token: f32 [head_dim / 2]."""

    def correction(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    # In f32, in the order in which the reference computes: the last bit of a frequency is
    # multiplied by the position.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    wavelengths = np.power(np.float32(theta), exponents)
    plain = np.float32(1.0) / wavelengths
    stretched = np.float32(1.0) / (np.float32(rope.factor) * wavelengths)
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    mixed: NDArray[np.float32] = stretched * (np.float32(1) - keep) + plain * keep
    return mixed


def yarn_tables(
    theta: float, rope: YarnScaling, head_dim: int, positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cos, sin) of every position times every frequency: f32 [positions, head_dim / 2] each."""
    frequencies = yarn_frequencies(theta, rope, head_dim)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    # float64 inside, so that the table is the correctly rounded value on every machine.
    wide = angles.astype(np.float64)
    cos = np.cos(wide).astype(np.float32) * np.float32(rope.attention_factor)
    sin = np.sin(wide).astype(np.float32) * np.float32(rope.attention_factor)
    return cos, sin
