"""config.json of published checkpoints, with their sizes made small, and what they say of weights.

The fields and their values are those of the checkpoints on the Hugging Face hub that a name says.
"""

from typing import Any

Json = dict[str, Any]

#: Sizes that every model here has, so that their programs have kernels in common. Tokens from
#: IMAGES on stand for images.
IMAGES = 130
VOCABULARY, HIDDEN, LAYERS = 144, 64, 1
SIZES: Json = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
}

#: The same of models whose heads are as large as these sizes imply.
WIDE: Json = {"hidden_size": 128}

#: meta-llama/Llama-3.3-70B-Instruct
LLAMA: Json = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3, 4],
    "head_dim": 32,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 16,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.48.2",
    "use_cache": True,
    **SIZES,
}

#: Qwen/Qwen3-8B
QWEN3: Json = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    **SIZES,
}

#: Qwen/Qwen3-30B-A3B
QWEN3_MOE: Json = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}

#: mistralai/Mistral-Small-3.2-24B-Instruct-2506: a language model beside one that sees.
MISTRAL3: Json = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "model_type": "mistral3",
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "text_config": {
        "attention_dropout": 0.0,
        "head_dim": 32,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "model_type": "mistral",
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0,
        "sliding_window": None,
        "use_cache": True,
        **SIZES,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.4",
    "vision_config": {
        "attention_dropout": 0.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "image_size": 28,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "model_type": "pixtral",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "rope_theta": 10000.0,
    },
    "vision_feature_layer": -1,
}

#: Qwen/Qwen3-VL-8B-Instruct
QWEN3_VL: Json = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 130,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "model_type": "qwen3_vl_text",
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "use_cache": True,
        **SIZES,
    },
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 131,
    "vision_config": {
        "deepstack_visual_indexes": [0],
        "depth": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "model_type": "qwen3_vl",
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

#: openai/gpt-oss-20b
GPT_OSS: Json = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 2,
    "experts_per_token": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "initial_context_length": 16,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "layer_types": ["sliding_attention"],
    "model_type": "gpt_oss",
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "output_router_logits": False,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 8,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    **SIZES,
}


def _quark_tensor(dtype: str, *, dynamic: bool) -> Json:
    grouped = dtype == "fp4"
    return {
        "ch_axis": -1 if grouped else None,
        "dtype": dtype,
        "group_size": 32 if grouped else None,
        "is_dynamic": dynamic,
        "is_scale_quant": False,
        "mx_element_dtype": None,
        "observer_cls": "PerBlockMXObserver" if grouped else "PerTensorMinMaxObserver",
        "qscheme": "per_group" if grouped else "per_tensor",
        "round_method": "half_even",
        "scale_calculation_mode": "even" if grouped else None,
        "scale_format": "e8m0" if grouped else None,
        "scale_type": "float",
        "symmetric": None if grouped else True,
    }


def _quark_layer(weight: str, inputs: str | None, outputs: str | None = None) -> Json:
    return {
        "bias": None,
        "input_tensors": None if inputs is None else _quark_tensor(inputs, dynamic=inputs == "fp4"),
        "output_tensors": None if outputs is None else _quark_tensor(outputs, dynamic=False),
        "target_device": None,
        "weight": _quark_tensor(weight, dynamic=False),
    }


def quark(
    exclude: list[str],
    *,
    inputs: str = "fp4",
    layers: Json | None = None,
    cache: bool = False,
) -> Json:
    """What AMD's checkpoints in MXFP4 say; `cache`: of a KV cache in fp8 too."""
    layers = dict(layers or {})
    caches = {}
    if cache:
        caches = {f"*{part}_proj": _quark_layer("fp4", inputs, "fp8_e4m3") for part in "kv"}
        layers |= caches
    return {
        "algo_config": None,
        "exclude": exclude,
        "export": {
            "kv_cache_group": list(caches),
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
        "global_quant_config": _quark_layer("fp4", inputs),
        "kv_cache_quant_config": caches,
        "layer_quant_config": layers,
        "layer_type_quant_config": {},
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "softmax_quant_spec": None,
        "version": "0.10",
    }


def modelopt(
    exclude: list[str], *, cache: bool = True, layers: dict[str, Json] | None = None
) -> tuple[Json, Json]:
    """hf_quant_config.json of NVIDIA's checkpoints, and quantization_config of config.json."""
    algorithm = "NVFP4" if layers is None else "MIXED_PRECISION"
    beside: Json = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": "FP8" if cache else None,
        "exclude_modules": exclude,
    }
    numbers = {
        "NVFP4": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
        "FP8": {"dynamic": False, "num_bits": 8, "type": "float"},
    }
    if layers is None:
        beside["group_size"] = 16
        targets = {"NVFP4": ["Linear"]}
    else:
        beside["quantized_layers"] = layers
        algorithms = sorted({each["quant_algo"] for each in layers.values()})
        targets = {a: [n for n, e in layers.items() if e["quant_algo"] == a] for a in algorithms}
    inside: Json = {
        "config_groups": {
            f"group_{number}": {
                "input_activations": numbers[each],
                "weights": numbers[each],
                "targets": names,
            }
            for number, (each, names) in enumerate(targets.items())
        },
        "ignore": exclude,
        "quant_algo": algorithm,
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"} if cache else None,
        "producer": {"name": "modelopt", "version": "0.35.0"},
        "quant_method": "modelopt",
    }
    if layers is not None:
        inside["quantized_layers"] = layers
    return {"producer": inside["producer"], "quantization": beside}, inside


def _arguments(bits: int, strategy: str, group: int | None = None, **more: Any) -> Json:
    return {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": group,
        "num_bits": bits,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": strategy,
        "symmetric": True,
        "type": "float",
        **more,
    }


#: format, and what tells it from others of its name -> weights, inputs
GROUPS: dict[str, tuple[Json, Json | None]] = {
    "nvfp4-pack-quantized": (
        _arguments(4, "tensor_group", 16, scale_dtype="torch.float8_e4m3fn"),
        _arguments(4, "tensor_group", 16, dynamic="local"),
    ),
    "mxfp4-pack-quantized": (_arguments(4, "group", 32, scale_dtype="torch.uint8"), None),
    "float-quantized": (_arguments(8, "channel"), _arguments(8, "token", dynamic=True)),
    "float-quantized, static": (_arguments(8, "tensor"), _arguments(8, "tensor")),
    "pack-quantized": (_arguments(4, "group", 32, type="int"), None),
    "pack-quantized, groups of 128": (_arguments(4, "group", 128, type="int"), None),
    "pack-quantized, int8": (_arguments(8, "group", 32, type="int"), None),
    "int-quantized": (
        _arguments(8, "channel", type="int"),
        _arguments(8, "token", dynamic=True, type="int"),
    ),
}


def compressed(targets: dict[str, list[str]], ignore: list[str], *, cache: bool = False) -> Json:
    """What llm-compressor's checkpoints say; `targets` of each of GROUPS."""
    names = [group.partition(",")[0] for group in targets]
    return {
        "config_groups": {
            f"group_{number}": {
                "format": names[number],
                "input_activations": GROUPS[group][1],
                "output_activations": None,
                "targets": layers,
                "weights": GROUPS[group][0],
            }
            for number, (group, layers) in enumerate(targets.items())
        },
        "format": names[0] if len(targets) == 1 else "mixed-precision",
        "global_compression_ratio": None,
        "ignore": ignore,
        "kv_cache_scheme": _arguments(8, "tensor") if cache else None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.3.a20251030",
    }
