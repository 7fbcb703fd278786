"""Dense architectures at a small size, and what all cases have in common (cases.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as t

#: Products of nvfp4 are compiled in two thirds of the time of mxfp4.
ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "nvfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "nvfp4")
LAYER = ATTENTION | MLP
MX_LAYER = dict.fromkeys(LAYER, "mxfp4")


@dataclass(frozen=True)
class Case:
    """A checkpoint: transformers' config, formats by ends of names, the dtype of what stays
    plain. `recorded`: writes a checkpoint of which transformers has no model, and returns what was
    recorded of it. `dense`: compiled with --quantize-dense mxfp8, which quantizes the matrices with
    these ends of names except for so many of their last rows."""

    config: Any
    formats: Mapping[str, str]
    dtype: torch.dtype = torch.bfloat16
    recorded: Callable[[Path], Any] | None = None
    dense: Mapping[str, int] = field(default_factory=dict)


ONE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 144,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
TWO = ONE | {"num_hidden_layers": 2}
#: Heads that are larger than the config says without head_dim.
LARGE: dict[str, Any] = {"hidden_size": 64, "head_dim": 32}

SLIDES, SEES_ALL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
#: The first layer slides, the second sees everything.
SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": [SLIDES, SEES_ALL]}

PLAIN_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = PLAIN_ROPE | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
YARN = PLAIN_ROPE | {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16}
#: Scores are multiplied with more than the size of a head says.
YARN_OF_SCORES = YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}
#: Rotary positions of each kind of layers.
BY_KIND = {SEES_ALL: {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e6}, SLIDES: PLAIN_ROPE}

BIASES: dict[str, Any] = {"attention_bias": True, "mlp_bias": True}
FOUR_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}


def longrope(original: int) -> dict[str, Any]:
    """As in Phi-4-mini: twelve pairs of 32 dimensions are rotated, each with factors of its own."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": original,
            "long_factor": 2 * [1.0, 1.1, 1.7, 3.5, 9.0, 20.0],
            "short_factor": 2 * [1.0, 1.0, 1.02, 1.1, 1.3, 1.5],
        },
    }


#: Three matrices are one, and two are.
PHI3 = dict.fromkeys(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), "mxfp4")

DENSE: dict[str, Case] = {
    "arcee": Case(t.ArceeConfig(**ONE | LARGE, **BIASES), LAYER),
    # Attention and MLP side by side.
    "cohere2": Case(
        t.Cohere2Config(**TWO | SLIDING | {"num_key_value_heads": 4}),
        LAYER,
    ),
    # The second layer slides; rotary positions are those of a config without any.
    "cwm": Case(t.CwmConfig(**TWO | LARGE, sliding_window=8), LAYER),
    "ernie4_5": Case(t.Ernie4_5Config(**ONE | LARGE), LAYER),
    "glm4": Case(t.Glm4Config(**ONE | LARGE), LAYER | {"gate_up_proj": "nvfp4"}),
    "llama": Case(t.LlamaConfig(**ONE | LARGE, **BIASES, rope_parameters=LLAMA3), MX_LAYER),
    "mistral": Case(
        t.MistralConfig(
            **ONE,
            sliding_window=8,
            rope_parameters=PLAIN_ROPE | {"rope_type": "linear", "factor": 3.0},
        ),
        MX_LAYER,
        torch.float32,
    ),
    "olmo2": Case(t.Olmo2Config(**ONE), LAYER),
    "olmo3": Case(t.Olmo3Config(**TWO, **SLIDING, rope_parameters=BY_KIND), LAYER),
    # Sequences are longer than the original context.
    "phi3": Case(t.Phi3Config(**ONE, **longrope(16)), PHI3),
    # The head is the embedding; the first layer sees everything, the second slides. Every matrix
    # has its own format: gate and up are two products, and activations are prepared for blocks of
    # 32 and of 16.
    "qwen2": Case(
        t.Qwen2Config(
            **TWO,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
        ),
        {
            "q_proj": "mxfp8e4m3",
            "k_proj": "mxfp6e2m3",
            "v_proj": "nvfp4",
            "o_proj": "mxfp4",
            "gate_proj": "mxfp8e4m3",
            "up_proj": "mxfp4",
            "down_proj": "nvfp4",
        },
        torch.float16,
    ),
    # Sequences are not longer than the original context of phi3. The program is the same, and far
    # enough from it to be in the cache.
    "phi3, short": Case(t.Phi3Config(**ONE, **longrope(87)), PHI3),
}
