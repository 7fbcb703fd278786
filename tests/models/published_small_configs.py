"""config.json of the checkpoints of published_names.py, with their sizes made small.

A comment names the checkpoint on the Hugging Face hub, and where its fields were read: "copy" is
its config.json as another public repository has it (TensorRT-LLM and Megatron-Bridge of NVIDIA in
their tests, ai-dynamo/aiconfigurator in model_configs/); "class" is transformers' configuration,
whose fields a checkpoint has that transformers wrote.
"""

from tests.models.published_configs import SIZES, WIDE, Json

_USUAL: Json = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    **SIZES,
}


def _named(name: str, model_type: str, **more: object) -> Json:
    return {**_USUAL, "architectures": [name], "model_type": model_type, **more}


#: deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct: a copy of DeepSeek-V2-Lite, of the same class, with
#: groups of experts as in DeepSeek-V2, of which half is left out.
DEEPSEEK_V2 = _named(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    attention_bias=False,
    aux_loss_alpha=0.001,
    auto_map={"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    first_k_dense_replace=1,
    kv_lora_rank=64,
    moe_intermediate_size=64,
    moe_layer_freq=1,
    n_group=4,
    n_routed_experts=8,
    n_shared_experts=2,
    norm_topk_prob=False,
    num_experts_per_tok=3,
    num_hidden_layers=2,
    num_key_value_heads=4,
    pretraining_tp=1,
    q_lora_rank=None,
    qk_nope_head_dim=32,
    qk_rope_head_dim=32,
    rms_norm_eps=1e-06,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 16,
        "type": "yarn",
    },
    routed_scaling_factor=1.5,
    scoring_func="softmax",
    seq_aux=True,
    topk_group=2,
    topk_method="group_limited_greedy",
    v_head_dim=32,
)

#: LGAI-EXAONE/EXAONE-4.0-32B: copy in TensorRT-LLM.
EXAONE4 = _named(
    "Exaone4ForCausalLM",
    "exaone4",
    head_dim=32,
    layer_types=["sliding_attention", "full_attention"],
    num_hidden_layers=2,
    pad_token_id=0,
    rope_scaling={
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 16,
        "rope_type": "llama3",
    },
    rope_theta=1000000,
    sliding_window=8,
    sliding_window_pattern="LLLG",
)

#: google/gemma-2-9b-it: copy of the 2B in Megatron-Bridge, which has no sliding_window_size.
GEMMA2 = _named(
    "Gemma2ForCausalLM",
    "gemma2",
    attention_bias=False,
    attn_logit_softcapping=50.0,
    cache_implementation="hybrid",
    final_logit_softcapping=30.0,
    head_dim=32,
    hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh",
    num_hidden_layers=2,
    query_pre_attn_scalar=256,
    rms_norm_eps=1e-06,
    sliding_window=8,
    sliding_window_size=8,
    tie_word_embeddings=True,
)

#: zai-org/GLM-4.5-Air: class.
GLM4_MOE = _named(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    attention_bias=True,
    first_k_dense_replace=1,
    head_dim=32,
    moe_intermediate_size=64,
    n_group=1,
    n_routed_experts=4,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    num_nextn_predict_layers=1,
    partial_rotary_factor=0.5,
    rope_scaling=None,
    rope_theta=1000000,
    routed_scaling_factor=1.0,
    topk_group=1,
    use_qk_norm=False,
)

#: zai-org/GLM-4.7-Flash: copy in the tests of vLLM.
GLM4_MOE_LITE = _named(
    "Glm4MoeLiteForCausalLM",
    "glm4_moe_lite",
    attention_bias=False,
    first_k_dense_replace=1,
    kv_lora_rank=64,
    moe_intermediate_size=64,
    n_group=1,
    n_routed_experts=4,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    num_key_value_heads=4,
    num_nextn_predict_layers=1,
    partial_rotary_factor=1.0,
    q_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=32,
    rope_scaling=None,
    rope_theta=1000000,
    routed_scaling_factor=1.8,
    topk_group=1,
    topk_method="noaux_tc",
    v_head_dim=32,
)

#: ibm-granite/granite-3.1-8b-instruct: copy of granite-3.3-8b-instruct.
GRANITE = _named(
    "GraniteForCausalLM",
    "granite",
    **WIDE,
    attention_bias=False,
    attention_dropout=0.1,
    attention_multiplier=0.0078125,
    embedding_multiplier=12.0,
    logits_scaling=16.0,
    mlp_bias=False,
    pad_token_id=0,
    residual_multiplier=0.22,
    rope_scaling=None,
    rope_theta=10000000.0,
    tie_word_embeddings=True,
)

#: tencent/Hunyuan-7B-Instruct: copy in aiconfigurator, of a model of the same size.
HUNYUAN = _named(
    "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_dense",
    add_classification_head=False,
    attention_bias=False,
    attention_dropout=0.1,
    attention_head_dim=32,
    cla_share_factor=2,
    class_num=0,
    dense_list=[64, 0],
    head_dim=32,
    im_end_id=5,
    im_newline_id=11,
    im_start_id=4,
    mask_init_id=12,
    mlp_bias=False,
    norm_type="rms",
    org_vocab_size=SIZES["vocab_size"],
    pad_id=3,
    pad_token_id=3,
    pool_type="last",
    pretraining_tp=1,
    rope_scaling={
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
    sep_token_id=2,
    text_end_id=7,
    text_start_id=6,
    use_qk_norm=True,
    use_cla=False,
)

#: LiquidAI/LFM2.5-8B-A1B: copy of the fields that count.
LFM2_MOE: Json = {
    **{key: value for key, value in _USUAL.items() if key not in ("hidden_act", "rms_norm_eps")},
    **WIDE,
    "architectures": ["Lfm2MoeForCausalLM"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "layer_types": ["conv", "full_attention", "conv"],
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 64,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_dense_layers": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "rope_theta": 5000000.0,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
    "use_expert_bias": True,
}

#: MiniMaxAI/MiniMax-M2: copy of M2.5 in aiconfigurator; M2 has attn_type_list too.
MINIMAX_M2: Json = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attn_type_list": [1],
    "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"},
    "head_dim": 32,
    "hidden_act": "silu",
    "intermediate_size": 64,
    "model_type": "minimax_m2",
    "mtp_transformer_layers": 1,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 16,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "transformers_version": "4.46.1",
    "use_cache": True,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    **SIZES,
}

#: mistralai/Mixtral-8x7B-Instruct-v0.1: copy of Mixtral-8x7B-v0.1 in aiconfigurator, with a window.
MIXTRAL = _named(
    "MixtralForCausalLM",
    "mixtral",
    **WIDE,
    num_experts_per_tok=2,
    num_local_experts=4,
    output_router_logits=False,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.02,
    sliding_window=8,
)

#: Qwen/Qwen2-57B-A14B-Instruct: copy in TensorRT-LLM.
QWEN2_MOE = _named(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    **WIDE,
    decoder_sparse_step=1,
    max_window_layers=28,
    moe_intermediate_size=64,
    norm_topk_prob=False,
    num_experts=4,
    num_experts_per_tok=2,
    output_router_logits=False,
    rms_norm_eps=1e-06,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=64,
    sliding_window=65536,
    use_sliding_window=False,
)

#: ByteDance-Seed/Seed-OSS-36B-Instruct: class, and a copy of the fields that count, with all biases
#: of the class, and heads of no whole tiles of attention.
SEED_OSS = _named(
    "SeedOssForCausalLM",
    "seed_oss",
    attention_bias=True,
    attention_dropout=0.1,
    attention_out_bias=True,
    head_dim=24,
    mlp_bias=True,
    pad_token_id=1,
    residual_dropout=0.1,
    rms_norm_eps=1e-06,
    rope_scaling={"rope_type": "default"},
    rope_theta=10000000.0,
)

#: HuggingFaceTB/SmolLM3-3B: copy.
SMOLLM3 = _named(
    "SmolLM3ForCausalLM",
    "smollm3",
    **WIDE,
    attention_bias=False,
    layer_types=["full_attention"] * 2,
    max_window_layers=28,
    mlp_bias=False,
    no_rope_layer_interval=4,
    no_rope_layers=[1, 0],
    num_hidden_layers=2,
    pad_token_id=3,
    pretraining_tp=2,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=5000000.0,
    sliding_window=None,
    tie_word_embeddings=True,
    use_sliding_window=False,
)

#: bigcode/starcoder2-7b: class, and fields of GPTBigCode, which it states too.
STARCODER2: Json = {
    **{k: v for k, v in _USUAL.items() if k != "rms_norm_eps"},
    **WIDE,
    "activation_function": "gelu",
    "architectures": ["Starcoder2ForCausalLM"],
    "attention_dropout": 0.1,
    "attention_softmax_in_fp32": True,
    "embedding_dropout": 0.1,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 256,
    "mlp_type": "default",
    "model_type": "starcoder2",
    "norm_epsilon": 1e-05,
    "norm_type": "layer_norm",
    "residual_dropout": 0.1,
    "rope_theta": 1000000,
    "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True,
    "sliding_window": 8,
    "use_bias": True,
}
