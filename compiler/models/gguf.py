"""Reads the model of a GGUF: metadata as a config, and tensors of rotary divisors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.rope import Divisors, LinearScaling
from mxc.compiler.models.configs.gguf import stores_norms, transformers_config
from mxc.compiler.models.configs.gguf_rope import DIVISORS, FACTORS, longrope_fields
from mxc.compiler.models.decoder import Decoder
from mxc.errors import CheckpointError


def read_gguf_decoder(
    metadata: Mapping[str, Any],
    tensors: Collection[str],
    rotary: Mapping[str, NDArray[np.float32]],
    place: str,
) -> Decoder:
    """Return the model that the metadata and tensors of a GGUF describe.

    tensors: the names of the other tensors. rotary: the tensors of DIVISORS and FACTORS that the
    file has. Raises the CheckpointErrors of transformers_config and read_decoder, and one for
    divisors that are not one per rotary pair, or that are combined with a scaling but linear.
    """
    config = transformers_config(metadata, {*tensors, *rotary}, place)
    if factors := {name: rotary[name] for name in FACTORS if name in rotary}:
        config |= longrope_fields(factors, metadata, place)
    decoder = read_decoder(config, place)
    if stores_norms(metadata):
        decoder = replace(decoder, norm=replace(decoder.norm, offset=0.0))
    divisors = rotary.get(DIVISORS)
    if divisors is None:
        return decoder
    depth, scaling = decoder.heads.rope_depth, decoder.rope.scaling
    if divisors.size != depth // 2 or not (scaling is None or isinstance(scaling, LinearScaling)):
        raise CheckpointError(
            f"{place}: tensor {DIVISORS} has {divisors.size} divisors of rotary frequencies; "
            f"wanted one for each pair of the {depth} dimensions of a head, and no scaling beside "
            "them but linear"
        )
    factor = 1.0 if scaling is None else scaling.factor
    numbers = tuple((divisors * np.float32(factor)).tolist())
    return decoder.with_rope(lambda rope: replace(rope, scaling=Divisors(numbers=numbers)))
