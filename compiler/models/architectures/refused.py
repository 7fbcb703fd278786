"""Architectures that are refused by name, and what a model of them would need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What is missing -> model types.
_MISSING = {
    "sparse attention that an indexer chooses": (
        "deepseek_v32",
        "deepseek_v4",
        "glm5_next_text",
        "glm_moe_dsa",
    ),
    "state space layers (Mamba)": (
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "jamba",
        "mamba",
        "mamba2",
        "nemotron_h",
        "zamba",
        "zamba2",
    ),
    "lightning attention": ("bailing_hybrid", "minimax", "minimax_text_01"),
    "denoising of blocks of tokens (diffusion)": (
        "diffusion_gemma",
        "dream",
        "llada",
        "llada2_moe",
        "sdar",
    ),
}


def missing(config: Mapping[str, Any]) -> str | None:
    """Return what a model of this config would need and mxc does not have; None if unknown."""
    if config.get("is_encoder_decoder") is True:
        return "an encoder, and attention to its result"
    kind = config.get("model_type")
    return next((what for what, kinds in _MISSING.items() if kind in kinds), None)
