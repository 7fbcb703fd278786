"""Published checkpoints with multi-head latent attention: DeepSeek-V3 and R1, Kimi K2."""

from tests.models.published_checkpoints import FP8_ROWS, MLP, Published, Tensors
from tests.models.published_configs import SIZES, Json, compressed, quark
from tests.models.stored_weights import fp8_of_tiles, int4_of_groups, quark_mxfp4

_LAYERS = 2

#: deepseek-ai/DeepSeek-V3; heads and latent rows are as wide as squares of scales.
DEEPSEEK_V3: Json = {
    **SIZES,
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "kv_lora_rank": 128,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 2,
    "num_experts_per_tok": 2,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
}

_ATTENTION = r".*self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj)"
_MLP = f"{MLP}|.*shared_experts.*_proj"


def _further(plain: Tensors) -> Tensors:
    """The layer past the last one, which predicts the token after the next."""
    before, behind = (f"model.layers.{number}." for number in (_LAYERS - 1, _LAYERS))
    return {
        name.replace(before, behind): tensor.clone()
        for name, tensor in plain.items()
        if name.startswith(before)
    }


LATENT: dict[str, Published] = {
    "deepseek-v3-fp8": Published(
        model="deepseek-ai/DeepSeek-V3",
        config=DEEPSEEK_V3,
        quantization={
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        stores={f"{_ATTENTION}|{_MLP}": fp8_of_tiles},
        extra=_further,
        notes=("tensors of layers that predict tokens after the next",),
        # A row of 128, or a column, is in one square.
        packed={r"self_attn\.(q_b_proj|kv_b_proj\.(keys|values))|mlp.experts": FP8_ROWS},
    ),
    "amd-deepseek-r1-mxfp4": Published(
        model="amd/DeepSeek-R1-MXFP4-Preview",
        config=DEEPSEEK_V3,
        quantization=quark(["lm_head", "*mlp.gate"]),
        stores={f"{_ATTENTION}|{_MLP}": quark_mxfp4},
        notes=("2 weights are mxfp4 .*blocks lie along .*packed as bf16, 0.1 MiB",),
        packed={r"self_attn\.kv_b_proj\.values": ("mxfp4", lambda k: k / 2 + k / 32)},
    ),
    "kimi-k2-int4": Published(
        model="moonshotai/Kimi-K2-Thinking",
        config={**DEEPSEEK_V3, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
        quantization=compressed(
            {"pack-quantized": ["Linear"]},
            [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                "re:.*mlp.gate",
            ],
        ),
        stores={r".*mlp\.experts\.\d+\.(gate|up|down)_proj": int4_of_groups},
        packed={"mlp.experts": ("i4 with f32 per 32", lambda k: k / 2 + k / 32 * 4)},
    ),
}
