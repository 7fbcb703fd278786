"""Published checkpoints of fused layers (Phi), or without text_config (Qwen2.5-VL)."""

from tests.models.published_checkpoints import FP8_ROWS, LINEAR, Published, caches
from tests.models.published_configs import SIZES, WIDE, Json, compressed, modelopt
from tests.models.stored_weights import fp8_of_rows, fp8_of_tensor, modelopt_nvfp4

#: q, k and v are one layer, as gate and up are.
_LAYERS = r".*(self_attn\.(qkv|o)|mlp\.(gate_up|down))_proj"

#: microsoft/Phi-4-reasoning-plus
PHI_4: Json = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "model_type": "phi3",
    "original_max_position_embeddings": 256,
    "pad_token_id": 3,
    "partial_rotary_factor": 1.0,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.1",
    "use_cache": True,
    **SIZES,
    **WIDE,
}

#: microsoft/Phi-3.5-mini-instruct: rotary positions of longrope, and a window.
PHI_3_5: Json = {
    **PHI_4,
    "original_max_position_embeddings": 32,
    "rope_scaling": {
        "long_factor": 2 * [1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0],
        "short_factor": 2 * [1.0, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0],
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "transformers_version": "4.43.3",
}

#: Qwen/Qwen2.5-VL-7B-Instruct: the fields of its language model stand beside vision_config.
QWEN2_5_VL: Json = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "image_token_id": 134,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_section": [4, 6, 6], "type": "mrope"},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.41.2",
    "use_cache": True,
    "use_sliding_window": False,
    "video_token_id": 135,
    "vision_config": {
        "depth": 1,
        "fullatt_block_indexes": [0],
        "hidden_act": "silu",
        "hidden_size": 32,
        "in_chans": 3,
        "intermediate_size": 48,
        "model_type": "qwen2_5_vl",
        "num_heads": 2,
        "out_hidden_size": WIDE["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
    },
    "vision_end_token_id": 132,
    "vision_start_token_id": 131,
    "vision_token_id": 133,
    **SIZES,
    **WIDE,
}

_BESIDE, _PHI_4 = modelopt(["lm_head"])

#: By a short name.
FUSED: dict[str, Published] = {
    "nvidia-phi4-nvfp4": Published(
        model="nvidia/Phi-4-reasoning-plus-NVFP4",
        config=PHI_4,
        quantization=_PHI_4,
        beside=_BESIDE,
        stores={_LAYERS: modelopt_nvfp4},
        packed={"self_attn|mlp": ("nvfp4", lambda k: k / 2 + k / 16 + 4)},
    ),
    "nm-phi3.5-fp8": Published(
        model="neuralmagic/Phi-3.5-mini-instruct-FP8-KV",
        config=PHI_3_5,
        quantization=compressed({"float-quantized, static": ["Linear"]}, ["lm_head"], cache=True),
        stores={_LAYERS: fp8_of_tensor},
        extra=lambda plain: caches(
            "model.layers.{layer}.self_attn.{part}_scale", "k", "v", shape=(1,)
        ),
        notes=(
            r"key/value cache is f8_e4m3.*the cache of this program is f32",
            r"weights are f8_e4m3 .*: they do not meet activations in f8_e4m3",
        ),
        packed={"self_attn|mlp": FP8_ROWS},
    ),
    "redhat-qwen2.5-vl-fp8": Published(
        model="RedHatAI/Qwen2.5-VL-7B-Instruct-FP8-Dynamic",
        config=QWEN2_5_VL,
        quantization=compressed({"float-quantized": ["Linear"]}, ["re:.*lm_head", "re:visual.*"]),
        stores={rf"model\.layers({LINEAR})": fp8_of_rows},
        notes=(r"its language model, a qwen2, is compiled; not compiled: \d+ tensors of visual",),
        packed={r"(self_attn|mlp)\.\w+\.weight": FP8_ROWS},
    ),
}
