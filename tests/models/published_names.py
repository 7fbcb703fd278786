"""Published checkpoints of architectures that no other file here has, and of further dialects.

What their libraries write of a layer is in stored_weights.py; what they say of all layers is here.
"""

from tests.models.published_checkpoints import ATTENTION, LINEAR, MLP, Published
from tests.models.published_configs import LAYERS, Json, compressed, modelopt
from tests.models.published_fused import QWEN2_5_VL
from tests.models.published_small_configs import (
    DEEPSEEK_V2,
    EXAONE4,
    GEMMA2,
    GLM4_MOE,
    GLM4_MOE_LITE,
    GRANITE,
    HUNYUAN,
    LFM2_MOE,
    MINIMAX_M2,
    MIXTRAL,
    QWEN2_MOE,
    SEED_OSS,
    SMOLLM3,
    STARCODER2,
)
from tests.models.published_wrapped import GEMMA3, LLAMA4, MINISTRAL3
from tests.models.stored_weights import (
    compressed_nvfp4,
    fp8_of_rows,
    fp8_of_tensor,
    fp8_of_tiles,
    mistral_fp8,
    modelopt_nvfp4,
)


def _fp8(excluded: list[str], *, tiles: bool = False, **more: object) -> Json:
    """`quant_method` fp8: of AutoFP8 and AngelSlim, or with squares of 128."""
    if tiles:
        more = {"weight_block_size": [128, 128], "modules_to_not_convert": excluded, **more}
    else:
        more = {"ignored_layers": excluded, **more}
    return {"activation_scheme": "dynamic" if tiles else "static", "quant_method": "fp8", **more}


#: A router, a head.
_GATES = [f"model.layers.{n}.mlp.gate" for n in range(LAYERS)]
_ROW_SCALES = compressed({"float-quantized": ["Linear"]}, ["lm_head"])

_LATENT = r".*self_attn\.(q_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj)"
_SHARED = r".*mlp\.shared_experts?\.(gate|up|down)_proj"
_BLOCK_SPARSE = r".*block_sparse_moe\.experts\.\d+\.w[123]"

#: Half of the groups of experts is left out; published checkpoints have one group.
_GROUPS = {
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.5,
    "topk_group": 2,
}

_CONVOLUTION = r".*conv\.(in|out)_proj"
_LFM2_EXPERTS = r".*feed_forward\.(experts\.\d+\.)?w[123]"


def _nvidia(model: str, config: Json, stores: str, excluded: list[str]) -> Published:
    """NVFP4 of Model Optimizer; what is `excluded` beside the head."""
    beside, inside = modelopt(["lm_head", *excluded])
    stored = {stores: modelopt_nvfp4}
    return Published(model=model, config=config, quantization=inside, beside=beside, stores=stored)


#: By a short name.
NAMES: dict[str, Published] = {
    "redhat-deepseek-v2-fp8": Published(
        model="RedHatAI/DeepSeek-Coder-V2-Lite-Instruct-FP8",
        config=DEEPSEEK_V2,
        quantization=_fp8(["lm_head", "model.layers.1.mlp.gate"]),
        stores={f"{_LATENT}|{MLP}|{_SHARED}": fp8_of_tensor},
    ),
    "exaone4-fp8": Published(
        model="LGAI-EXAONE/EXAONE-4.0-32B-FP8",
        config=EXAONE4,
        quantization=_fp8(["lm_head"], tiles=True),
        stores={LINEAR: fp8_of_tiles},
    ),
    "redhat-gemma2-fp8": Published(
        model="RedHatAI/gemma-2-9b-it-FP8",
        config=GEMMA2,
        quantization=_fp8(["lm_head"]),
        stores={LINEAR: fp8_of_tensor},
    ),
    "redhat-gemma3-fp8": Published(
        model="RedHatAI/gemma-3-27b-it-FP8-dynamic",
        config=GEMMA3,
        quantization=compressed(
            {"float-quantized": ["Linear"]},
            ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ),
        stores={rf"language_model\.({LINEAR})": fp8_of_rows},
    ),
    "glm4.5-fp8": Published(
        model="zai-org/GLM-4.5-Air-FP8",
        config=GLM4_MOE,
        quantization=compressed(
            {"float-quantized": ["Linear"]}, ["lm_head", "model.layers.1.mlp.gate"]
        ),
        stores={f"{LINEAR}|{_SHARED}": fp8_of_rows},
    ),
    "glm4.7-flash-nvfp4": Published(
        model="GadflyII/GLM-4.7-Flash-NVFP4",
        config=GLM4_MOE_LITE,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
        ),
        stores={f"{MLP}|{_SHARED}": compressed_nvfp4},
    ),
    "redhat-granite-fp8": Published(
        model="RedHatAI/granite-3.1-8b-instruct-FP8-dynamic",
        config=GRANITE,
        quantization=_ROW_SCALES,
        stores={LINEAR: fp8_of_rows},
    ),
    "hunyuan-fp8": Published(
        model="tencent/Hunyuan-7B-Instruct-FP8",
        config=HUNYUAN,
        quantization=_fp8(["lm_head"]),
        stores={LINEAR: fp8_of_tensor},
    ),
    "redhat-llama4-nvfp4": Published(
        model="RedHatAI/Llama-4-Scout-17B-16E-Instruct-NVFP4",
        config=LLAMA4,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            [
                "re:.*lm_head",
                "re:.*self_attn",
                "re:.*router",
                "re:vision_model.*",
                "re:multi_modal_projector.*",
            ],
        ),
        stores={
            r"language_model\..*feed_forward\.((experts\.\d+|shared_expert)\.)?\w+_proj": (
                compressed_nvfp4
            )
        },
    ),
    "minimax-m2-fp8": Published(
        model="MiniMaxAI/MiniMax-M2",
        config=MINIMAX_M2,
        quantization=_fp8(
            ["gate", "e_score_correction_bias", "lm_head"], tiles=True, fmt="float8_e4m3fn"
        ),
        stores={f"{ATTENTION}|{_BLOCK_SPARSE}": fp8_of_tiles},
    ),
    "ministral3-fp8": Published(
        model="mistralai/Ministral-3-8B-Instruct-2512",
        config=MINISTRAL3,
        quantization={
            "activation_scheme": "static",
            "dequantize": False,
            "modules_to_not_convert": [
                "model.vision_tower",
                "model.multi_modal_projector",
                "lm_head",
            ],
            "quant_method": "fp8",
            "weight_block_size": None,
        },
        stores={rf"language_model\.({LINEAR})": mistral_fp8},
    ),
    "redhat-mixtral-fp8": Published(
        model="RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8",
        config=MIXTRAL,
        quantization=_fp8(["lm_head", "model.layers.0.block_sparse_moe.gate"]),
        stores={f"{ATTENTION}|{_BLOCK_SPARSE}": fp8_of_tensor},
    ),
    "redhat-qwen2-moe-fp8": Published(
        model="RedHatAI/Qwen2-57B-A14B-Instruct-FP8",
        config=QWEN2_MOE,
        quantization=_fp8(["lm_head", *_GATES, "model.layers.0.mlp.shared_expert_gate"]),
        stores={f"{LINEAR}|{_SHARED}": fp8_of_tensor},
    ),
    "angelslim-seed-oss-fp8": Published(
        model="AngelSlim/Seed-OSS-36B-Instruct-FP8-Static",
        config=SEED_OSS,
        quantization=_fp8(["lm_head"]),
        stores={LINEAR: fp8_of_tensor},
    ),
    "redhat-smollm3-fp8": Published(
        model="RedHatAI/SmolLM3-3B-FP8-dynamic",
        config=SMOLLM3,
        quantization=_ROW_SCALES,
        stores={LINEAR: fp8_of_rows},
    ),
    "redhat-starcoder2-fp8": Published(
        model="RedHatAI/starcoder2-7b-FP8",
        config=STARCODER2,
        quantization=_fp8(["lm_head"]),
        stores={rf"{ATTENTION}|.*mlp\.c_(fc|proj)": fp8_of_tensor},
    ),
    "nvidia-gemma3-nvfp4": _nvidia(
        "nvidia/gemma-3-27b-it-NVFP4",
        GEMMA3,
        rf"language_model\.({LINEAR})",
        ["vision_tower*", "multi_modal_projector*"],
    ),
    "nvidia-glm4.7-nvfp4": _nvidia(
        "nvidia/GLM-4.7-NVFP4",
        {**GLM4_MOE, **_GROUPS, "use_qk_norm": True},
        rf"{MLP}|{_SHARED}",
        ["model.layers.0.self_attn*", "model.layers.1.self_attn*", "model.layers.1.mlp.gate"],
    ),
    "lfm2.5-nvfp4": _nvidia(
        "sakamakismile/LFM2.5-8B-A1B-NVFP4",
        LFM2_MOE,
        rf".*self_attn\.([qkv]|out)_proj|{_CONVOLUTION}|{_LFM2_EXPERTS}",
        ["model.layers.2.feed_forward.gate", "*conv.conv"],
    ),
    "nvidia-minimax-nvfp4": _nvidia(
        "nvidia/MiniMax-M2.5-NVFP4",
        MINIMAX_M2,
        _BLOCK_SPARSE,
        ["model.layers.0.block_sparse_moe.gate", "model.layers.0.self_attn*"],
    ),
    "nvidia-mixtral-nvfp4": _nvidia(
        "nvidia/Mixtral-8x7B-Instruct-v0.1-NVFP4",
        MIXTRAL,
        f"{ATTENTION}|{_BLOCK_SPARSE}",
        ["model.layers.0.block_sparse_moe.gate"],
    ),
    "nvidia-qwen2.5-vl-nvfp4": _nvidia(
        "nvidia/Qwen2.5-VL-7B-Instruct-NVFP4",
        QWEN2_5_VL,
        rf"model\.layers({LINEAR})",
        ["visual*"],
    ),
}
