"""Rotary positions in a GGUF: metadata and tensors, as config.json has them.

    linear, yarn  rope.scaling.* in the metadata
    llama3        rope_freqs.weight: what each frequency is divided by
    longrope      rope_factors_long.weight, rope_factors_short.weight: the divisors of Phi-3

Source: convert_hf_to_gguf.py; llama.cpp's src/llama-model.cpp (the keys and their defaults) and
src/llama-context.cpp (what attn_factor multiplies).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.configs.yarn import yarn_attention
from mxc.errors import CheckpointError

#: The tensor of what each rotary frequency is divided by.
DIVISORS = "rope_freqs.weight"

#: Tensors of longrope.
FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")

#: Two attention factors of one file agree within that, relative: both were rounded to float32.
_AGREE = 1e-6


def rope_scaling(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """`rope_scaling` of config.json; empty without scaling. `own`: keys after the architecture.

    Defaults are llama.cpp's: a factor without a type is linear, and YaRN without an original
    context has that of the model. Raises CheckpointError for what is not supported.
    """
    kind = own.get("rope.scaling.type", "linear")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(
            f"{place}: rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    # The second is the name in the first files. 0 is llama.cpp's word for none.
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
    """A finite number that is not negative; None where there is none."""
    value = own.get(key)
    if value is not None and (type(value) not in (int, float) or not 0 <= value < math.inf):
        raise CheckpointError(f"{place}: wanted a positive number for {key}, found {value!r}")
    return value


def _yarn(own: Mapping[str, Any], factor: float, place: str) -> dict[str, Any]:
    # What is not set is negative where llama.cpp itself has written the file.
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
    """What cos and sin are multiplied with; None: what YaRN makes of the factor.

    `attn_factor` is a factor beside YaRN's own, as llama.cpp computes; `yarn_attn_factor` is both,
    as convert_hf_to_gguf.py writes it.
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


def longrope_scaling(
    factors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """`rope_scaling` of config.json for divisors [pairs] of frequencies, by the names in FACTORS.

    Raises CheckpointError where one of both lists or the original context is missing.
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
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": metadata[key],
        "attention_factor": 1.0 if times is None else times,
    }


def llama3_scaling(
    divisors: NDArray[np.float32], config: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """The scaling of Llama 3 that divides frequencies so, as convert_hf_to_gguf.py does it.

    Raises CheckpointError where none of the published scalings does.
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
