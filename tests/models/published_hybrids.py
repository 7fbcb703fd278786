"""Published checkpoints with linear attention: Qwen3-Next, Qwen3.5 and Qwen3.6, Kimi Linear."""

import torch

from tests.models.published_checkpoints import ATTENTION, FP8_ROWS, MLP, Published, Tensors
from tests.models.published_configs import HIDDEN, SIZES, Json, compressed, modelopt, quark
from tests.models.stored_weights import (
    compressed_nvfp4,
    fp8_of_rows,
    fp8_of_tensor,
    modelopt_nvfp4,
    quark_mxfp4,
)

_KINDS = ["linear_attention", "full_attention"]
_STEM = "model.language_model.layers"

_LINEAR: Json = {
    "head_dim": 32,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "full_attention_interval": 2,
    "tie_word_embeddings": False,
    "use_cache": True,
    **SIZES,
    "num_hidden_layers": len(_KINDS),
}

_EXPERTS: Json = {
    "moe_intermediate_size": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 64,
}

#: Qwen/Qwen3-Next-80B-A3B-Instruct
QWEN3_NEXT: Json = {
    **_LINEAR,
    **_EXPERTS,
    "architectures": ["Qwen3NextForCausalLM"],
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "intermediate_size": 128,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "norm_topk_prob": True,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0",
    "use_sliding_window": False,
}

#: moonshotai/Kimi-Linear-48B-A3B-Instruct
KIMI_LINEAR: Json = {
    **{key: value for key, value in SIZES.items() if key != "max_position_embeddings"},
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "kv_lora_rank": 64,
    "linear_attn_config": {
        "full_attn_layers": [3],
        "head_dim": 32,
        "kda_layers": [1, 2],
        "num_heads": 2,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 256,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 0,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "transformers_version": "4.56.2",
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 32,
}

_TEXT: Json = {
    **_LINEAR,
    "attn_output_gate": True,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "layer_types": _KINDS,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "output_gate_type": "swish",
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}


def _wrapped(model_type: str, architecture: str, text: Json) -> Json:
    return {
        "architectures": [architecture],
        "image_token_id": 130,
        "model_type": model_type,
        "text_config": {**_TEXT, **text, "model_type": f"{model_type}_text"},
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 131,
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 48,
            "model_type": model_type,
            "num_heads": 2,
            "num_position_embeddings": 16,
            "out_hidden_size": HIDDEN,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": 132,
        "vision_start_token_id": 133,
    }


#: Qwen/Qwen3.6-27B, and Qwen/Qwen3.5-35B-A3B, -122B-A10B, -397B-A17B and Qwen/Qwen3.6-35B-A3B
QWEN3_5 = _wrapped("qwen3_5", "Qwen3_5ForConditionalGeneration", {"intermediate_size": 128})
QWEN3_5_MOE = _wrapped("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", _EXPERTS)


def _further(plain: Tensors) -> Tensors:
    """Layers that predict tokens after the next, which transformers does not read."""
    return {"mtp.fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN).bfloat16()}


_NVIDIA = modelopt(
    ["lm_head", "model.visual*", "mtp*", f"{_STEM}.*.linear_attn.conv1d"],
    layers={
        **{f"{_STEM}.1.self_attn.{part}_proj": {"quant_algo": "FP8"} for part in "qkvo"},
        # All experts of a layer have one name.
        **{
            f"{_STEM}.{n}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}
            for n in range(len(_KINDS))
        },
    },
)
_INSIDE = r"its language model, a qwen3_5{}, is compiled; not compiled: .* of model\.visual.*of mtp"

#: By a short name.
HYBRIDS: dict[str, Published] = {
    "kimi-linear": Published(
        model="moonshotai/Kimi-Linear-48B-A3B-Instruct",
        config=KIMI_LINEAR,
        quantization=None,
        stores={},
        # transformers writes the dense layer under the name of the others.
        names={".layers.0.block_sparse_moe.": ".layers.0.mlp."},
    ),
    "nvidia-qwen3.5-moe": Published(
        model="nvidia/Qwen3.5-397B-A17B-NVFP4-V2",
        config=QWEN3_5_MOE,
        quantization=_NVIDIA[1],
        beside=_NVIDIA[0],
        stores={ATTENTION: fp8_of_tensor, rf"{_STEM}.*experts\..*": modelopt_nvfp4},
        extra=lambda plain: (
            _further(plain)
            | {f"{_STEM}.1.self_attn.{part}_proj.{part}_scale": torch.tensor(0.03) for part in "kv"}
        ),
        notes=(
            r"key/value cache is f8_e4m3, .* for 1 layers of 1",
            r"4 weights are f8_e4m3 .*: they do not meet activations in f8",
            _INSIDE.format("_moe"),
        ),
        packed={"self_attn": FP8_ROWS},
    ),
    "amd-qwen3.5-moe": Published(
        model="amd/Qwen3.5-397B-A17B-MXFP4",
        config=QWEN3_5_MOE,
        quantization=quark(
            [
                "re:.*linear_attn.*",
                "re:.*self_attn.*",
                "re:.*mlp.gate$",
                "re:.*shared_expert.*",
                "re:.*visual.*",
                "re:mtp.*",
                "lm_head",
            ]
        ),
        stores={rf"{_STEM}.*experts\..*": quark_mxfp4},
        extra=_further,
        notes=(_INSIDE.format("_moe"),),
    ),
    "redhat-qwen3-next": Published(
        model="RedHatAI/Qwen3-Next-80B-A3B-Instruct-NVFP4",
        config=QWEN3_NEXT,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            [
                "lm_head",
                "re:.*mlp.gate$",
                "re:.*mlp.shared_expert_gate$",
                "re:.*linear_attn.*",
                "re:^mtp.*",
            ],
        ),
        stores={rf"{ATTENTION}|{MLP}|.*shared_expert\..*": compressed_nvfp4},
        extra=_further,
        notes=(r"1 tensors of layers that predict tokens after the next \(mtp.fc.weight\)",),
    ),
    "unsloth-qwen3.6": Published(
        model="unsloth/Qwen3.6-27B-NVFP4",
        config={**QWEN3_5, "unsloth_fixed": True},
        quantization=compressed(
            {
                "float-quantized": [
                    r"re:.*self_attn\.(q|k|v|o)_proj$",
                    r"re:.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$",
                    "lm_head",
                ],
                "nvfp4-pack-quantized": [r"re:.*layers\.\d+\.mlp\.(gate|up|down)_proj$"],
            },
            [],
        ),
        stores={
            rf"{ATTENTION}|.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)|lm_head": fp8_of_rows,
            MLP: compressed_nvfp4,
        },
        extra=_further,
        notes=(_INSIDE.format(""),),
        packed={r"self_attn|linear_attn\.(in_proj_(qkv|z)|out_proj)|lm_head": FP8_ROWS},
    ),
}
