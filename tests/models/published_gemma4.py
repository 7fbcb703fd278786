"""Published checkpoints of Gemma 4: dense, with experts, and with inputs of each layer's own."""

import torch

from tests.models.published_checkpoints import FP8_ROWS, MLP, Published, Tensors
from tests.models.published_configs import HIDDEN, SIZES, Json, compressed, modelopt
from tests.models.stored_weights import (
    compressed_mxfp4,
    compressed_nvfp4,
    fp8_of_rows,
    modelopt_nvfp4,
)

_KINDS = ["sliding_attention", "full_attention"]
_STEM = "model.language_model.layers"

#: google/gemma-4-31B-it
_TEXT: Json = {
    **SIZES,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": True,
    "bos_token_id": 2,
    "dtype": "bfloat16",
    "enable_moe_block": False,
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 64,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "layer_types": _KINDS,
    "model_type": "gemma4_text",
    "moe_intermediate_size": None,
    "num_experts": None,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": len(_KINDS),
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_bidirectional_attention": "vision",
    "use_cache": True,
    "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": SIZES["vocab_size"],
}


def _wrapped(text: Json) -> Json:
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": None,
        "boi_token_id": 131,
        "dtype": "bfloat16",
        "eoi_token_id": 132,
        "eos_token_id": [1, 3],
        "image_token_id": 130,
        "initializer_range": 0.02,
        "model_type": "gemma4",
        "text_config": {**_TEXT, **text},
        "tie_word_embeddings": True,
        "transformers_version": "5.5.0.dev0",
        "video_token_id": 133,
        "vision_config": {
            "global_head_dim": 16,
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "intermediate_size": 48,
            "model_type": "gemma4_vision",
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "patch_size": 4,
            "position_embedding_size": 16,
        },
    }


#: google/gemma-4-26B-A4B-it, of which every layer has experts
_EXPERTS: Json = {
    "enable_moe_block": True,
    "moe_intermediate_size": 64,
    "num_experts": 4,
    "top_k_experts": 2,
}
#: google/gemma-4-E2B-it
_BORROWS: Json = {
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 32,
    "layer_types": 2 * _KINDS,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 2 * len(_KINDS),
    "num_kv_shared_layers": len(_KINDS),
    "use_bidirectional_attention": None,
    "use_double_wide_mlp": True,
}


def _unread(plain: Tensors) -> Tensors:
    """Keys and values of layers that read those of others, which transformers ignores too."""
    layer = f"{_STEM}.{len(_KINDS)}.self_attn"
    return {
        f"{layer}.k_proj.weight": torch.zeros(64, HIDDEN).bfloat16(),
        f"{layer}.k_norm.weight": torch.zeros(32).bfloat16(),
    }


_INSIDE = (
    r"is a gemma4: its language model, a gemma4_text, is compiled; not compiled: .* tensors of "
    r"model\.embed_vision, .* of model\.vision_tower"
)
_NVIDIA = modelopt(["lm_head", "model.vision_tower*", "model.embed_vision*", "*.self_attn*"])
_NVIDIA_EXPERTS = modelopt(
    ["lm_head", "model.vision_tower*", "model.embed_vision*", "*.self_attn*", "*.router*", "*.mlp*"]
)

#: By a short name.
GEMMA4: dict[str, Published] = {
    "nvidia-gemma4": Published(
        model="nvidia/Gemma-4-31B-IT-NVFP4",
        config=_wrapped({}),
        quantization=_NVIDIA[1],
        beside=_NVIDIA[0],
        stores={rf"{_STEM}.*mlp\..*": modelopt_nvfp4},
        notes=(_INSIDE,),
    ),
    "nvidia-gemma4-experts": Published(
        model="nvidia/Gemma-4-26B-A4B-NVFP4",
        config=_wrapped(_EXPERTS),
        quantization=_NVIDIA_EXPERTS[1],
        beside=_NVIDIA_EXPERTS[0],
        stores={rf"{_STEM}.*experts\..*": modelopt_nvfp4},
        notes=(_INSIDE,),
    ),
    "redhat-gemma4": Published(
        model="RedHatAI/gemma-4-31B-it-NVFP4",
        config=_wrapped({}),
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["lm_head", "re:.*vision.*", "re:.*self_attn.*"],
        ),
        stores={rf"{_STEM}.*mlp\..*": compressed_nvfp4},
        notes=(_INSIDE,),
    ),
    # Experts are tensors of their own, and the router is in fp8 too.
    "redhat-gemma4-fp8-experts": Published(
        model="RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic",
        config=_wrapped(_EXPERTS),
        quantization=compressed({"float-quantized": ["Linear"]}, ["lm_head", "re:.*vision.*"]),
        stores={rf"{_STEM}.*(_proj|router\.proj).*": fp8_of_rows},
        notes=(_INSIDE,),
        packed={r"(self_attn|mlp|experts)\.\w+\.weight": FP8_ROWS},
    ),
    # Of this one no published checkpoint in blocks is known: names and config of the model.
    "gemma4-borrows": Published(
        model="google/gemma-4-E2B-it",
        config=_wrapped(_BORROWS),
        quantization=compressed(
            {"mxfp4-pack-quantized": ["Linear"]},
            ["lm_head", "re:.*vision.*", "re:.*self_attn.*", "re:.*per_layer.*"],
        ),
        stores={rf"{_STEM}.*{MLP.removeprefix('.*')}": compressed_mxfp4},
        extra=_unread,
        notes=(
            _INSIDE,
            r"2 tensors of layers that read keys and values of another \(.*\.2\.self_attn\.k_norm",
        ),
    ),
}
