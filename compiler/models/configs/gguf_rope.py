"""Converts rotary scaling in a GGUF, from metadata and tensors, to `rope_scaling` of config.json.

    linear, yarn  rope.scaling.* in the metadata
    llama3        rope_freqs.weight: the divisor of each frequency
    longrope      rope_factors_long.weight, rope_factors_short.weight: the divisors of Phi-3

Source: convert_hf_to_gguf.py; llama.cpp's src/llama-model.cpp (the keys and their defaults) and
src/llama-context.cpp (use of attn_factor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.configs.longrope import ORIGINAL
from mxc.compiler.models.configs.yarn import yarn_attention
from mxc.errors import CheckpointError

#: The tensor with the divisor of each rotary frequency.
DIVISORS = "rope_freqs.weight"

#: The tensors of LongRoPE's divisors.
FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")

#: Relative tolerance between two attention factors of one file, both rounded to float32.
_AGREE = 1e-6


def rope_scaling(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return `rope_scaling` of config.json; empty without scaling.

    own: metadata of the architecture, by key without the architecture's name. Defaults are
    llama.cpp's: a factor without a type is linear, and YaRN without an original context takes the
    model's context. Raises CheckpointError for unsupported values.
    """
    kind = own.get("rope.scaling.type", "linear")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(
            f"{place}: rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    # rope.scale_linear is the key of the oldest files. In llama.cpp 0 means no scaling.
    factor = _number(own, "rope.scaling.factor", place)
    factor = _number(own, "rope.scale_linear", place) if factor is None else factor
    if kind == "yarn":
        return _yarn(own, factor or 1.0, place)
    if (times := _number(own, "rope.scaling.attn_factor", place)) not in (None, 1.0):
        raise CheckpointError(
            f"{place}: rope.scaling.attn_factor is {times}; with linear scaling only 1 is supported"
        )
    return {"rope_type": "linear", "factor": factor} if factor and factor != 1.0 else {}


def _number(own: Mapping[str, Any], key: str, place: str) -> float | None:
    """Return a finite number that is not negative; None if the key is absent."""
    value = own.get(key)
    if value is not None and (type(value) not in (int, float) or not 0 <= value < math.inf):
        raise CheckpointError(f"{place}: wanted a positive number for {key}, found {value!r}")
    return value


def _yarn(own: Mapping[str, Any], factor: float, place: str) -> dict[str, Any]:
    # In files that llama.cpp itself has written, -1 means that the factor is not set.
    if (share := own.get("rope.scaling.yarn_ext_factor", 1.0)) not in (1.0, -1.0):
        raise CheckpointError(
            f"{place}: rope.scaling.yarn_ext_factor is {share}; only 1 is supported"
        )
    fields = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": own.get(
            "rope.scaling.original_context_length", own.get("context_length")
        ),
        "attention_factor": _attention_factor(own, factor, place),
        "beta_fast": own.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": own.get("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _attention_factor(own: Mapping[str, Any], factor: float, place: str) -> float | None:
    """Return the factor of cos and sin; None for YaRN's default.

    `attn_factor` multiplies YaRN's own factor, as llama.cpp computes it. `yarn_attn_factor` is the
    whole factor, as convert_hf_to_gguf.py writes it. Raises CheckpointError where both are given
    and disagree.
    """
    times = _number(own, "rope.scaling.attn_factor", place)
    whole = _number(own, "rope.scaling.yarn_attn_factor", place)
    if times is None or (whole is None and times == 1.0):
        return whole
    beside: float = times * yarn_attention(factor)
    if whole is not None and not math.isclose(whole, beside, rel_tol=_AGREE):
        raise CheckpointError(
            f"{place}: rope.scaling.yarn_attn_factor is {whole}, but rope.scaling.attn_factor "
            f"{times} times YaRN's own is {beside}; remove the one that is not meant"
        )
    return whole if whole is not None else beside


def longrope_fields(
    factors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """Return the fields of config.json for LongRoPE: rope_scaling, and the original context.

    factors: the divisors [pairs] of frequencies, by the names in FACTORS. Raises CheckpointError
    where one of the two lists or the original context is missing.
    """
    kind = metadata.get("general.architecture")
    key = f"{kind}.rope.scaling.original_context_length"
    if missing := [name for name in FACTORS if name not in factors]:
        raise CheckpointError(f"{place}: tensor {missing[0]} is missing; fetch the file again")
    if metadata.get(key) is None:
        raise CheckpointError(f"{place}: metadata {key} is missing; fetch the file again")
    own = {k.removeprefix(f"{kind}."): v for k, v in metadata.items()}
    long, short = (factors[name].tolist() for name in FACTORS)
    times = _number(own, "rope.scaling.attn_factor", place)
    scaling = {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        ORIGINAL: metadata[key],
        "attention_factor": 1.0 if times is None else times,
    }
    return {"rope_scaling": scaling, ORIGINAL: metadata[key]}


def llama3_scaling(
    divisors: NDArray[np.float32], config: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """Return the published scaling of Llama 3 that gives these divisors of frequencies.

    The divisors are computed as in convert_hf_to_gguf.py. Raises CheckpointError where no published
    scaling gives them.
    """
    base, width = config.get("rope_theta", 10000.0), 2 * divisors.size
    wavelengths = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
    low, high, original = 1.0, 4.0, 8192
    for factor in (8.0, 32.0, 16.0, 4.0):
        smooth = (original / wavelengths - low) / (high - low)
        wanted = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(wavelengths < original / high, 1.0, wanted)
        wanted = np.where(wavelengths > original / low, factor, wanted)
        if np.allclose(divisors, wanted, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(
        f"{place}: {DIVISORS} divides rotary frequencies as none of Llama 3's published "
        "scalings does, and config.json has no word for it; compile the GGUF as it is"
    )
