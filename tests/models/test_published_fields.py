"""Fields of published configs are read, and what is refused by name says what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from mxc.compiler.checkpoints.files.safetensors import found_instead
from mxc.compiler.models.architectures import read_decoder
from mxc.errors import CheckpointError
from tests.models.test_configs import LLAMA, QWEN2, QWEN3_MOE

Config = dict[str, Any]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"model_type": "deepseek_v32"}, "sparse attention that an indexer chooses"),
        ({"model_type": "glm_moe_dsa"}, "sparse attention that an indexer chooses"),
        ({"model_type": "nemotron_h"}, r"state space layers \(Mamba\)"),
        ({"model_type": "minimax"}, "lightning attention"),
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "an encoder, and attention to its result",
        ),
        ({"model_type": "llada"}, r"denoising of blocks of tokens \(diffusion\)"),
    ],
)
def test_what_is_missing(raw: Config, said: str) -> None:
    kind = raw["model_type"]
    with pytest.raises(CheckpointError, match=f"'{kind}' is not supported: it needs {said}$"):
        read_decoder(raw, "config.json")


def test_a_pipeline_of_diffusers(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").touch()
    assert found_instead(tmp_path).startswith("a pipeline of diffusers; of diffusion models")


def test_kimi_k2_is_a_deepseek_v3() -> None:
    """Under a model type of its own, with sizes of its own (moonshotai/Kimi-K2-Instruct)."""
    kimi = {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
        "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
        "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                         "type": "yarn"},
        "seq_aux": True, "aux_loss_alpha": 0.001, "ep_size": 1, "tie_word_embeddings": False,
        "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840,
    }  # fmt: skip
    found = read_decoder(kimi, "config.json")
    assert found == read_decoder(kimi | {"model_type": "deepseek_v3"}, "config.json")
    assert [kind.shape for kind in found.pages] == [(61, 64, 1, 576)]
    with pytest.raises(CheckpointError, match="scoring_func 'softmax' is not supported"):
        read_decoder(kimi | {"scoring_func": "softmax"}, "config.json")


@pytest.mark.parametrize(
    "raw",
    [
        QWEN2 | {"use_mrope": False, "use_sliding_window": False, "sliding_window": 131072,
                 "max_window_layers": 28, "torch_dtype": "bfloat16", "rope_theta": 1e6},
        LLAMA | {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1,
                 "transformers.js_config": {}, "rope_scaling": None, "head_dim": None},
        QWEN3_MOE | {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
                     "sliding_window": None, "use_sliding_window": False, "max_window_layers": 48,
                     "router_aux_loss_coef": 0.001, "output_router_logits": False},
        QWEN3_MOE | {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
        LLAMA | {"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4",
                 "layer_types": ["full_attention"], "max_window_layers": 64,
                 "reorder_qk_norm": True},
    ],
)  # fmt: skip
def test_fields_of_published_configs_are_known(raw: Config) -> None:
    """Qwen2.5-7B, SmolLM2, Qwen3-30B-A3B, Qwen3-Coder-480B and EXAONE 4.5 have these."""
    layer = read_decoder(raw, "config.json").layers[0]
    assert layer.attention.window is None


#: rednote-hilab/dots.llm1.inst and upstage/Solar-Open-100B: the fields that copies in tests of mlx
#: ports have. allenai/OLMoE-1B-7B-0924: the same, and the defaults of its class.
PUBLISHED: list[Config] = [
    {"attention_bias": False, "eos_token_id": 151649, "first_k_dense_replace": 1,
     "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 32768,
     "model_type": "dots1", "moe_intermediate_size": 1408, "n_group": None,
     "n_routed_experts": 128, "n_shared_experts": 2, "norm_topk_prob": True,
     "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 62,
     "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "rope_theta": 10000000,
     "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
     "topk_group": None, "vocab_size": 152064},
    {"first_k_dense_replace": 0, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10240,
     "max_position_embeddings": 131072, "model_type": "solar_open", "moe_intermediate_size": 1280,
     "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True,
     "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 48,
     "num_key_value_heads": 8, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05,
     "rope_scaling": {"factor": 2.0, "original_max_position_embeddings": 65536, "type": "yarn"},
     "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": False,
     "vocab_size": 196608},
    {"architectures": ["OlmoeForCausalLM"], "clip_qkv": None, "hidden_act": "silu",
     "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096,
     "model_type": "olmoe", "norm_topk_prob": False, "num_attention_heads": 16,
     "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
     "num_key_value_heads": 16, "rope_scaling": None, "rope_theta": 10000.0,
     "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "vocab_size": 50304,
     "eos_token_id": 50279, "pad_token_id": 1},
]  # fmt: skip


@pytest.mark.parametrize("raw", PUBLISHED, ids=[each["model_type"] for each in PUBLISHED])
def test_published_configs_say_what_transformers_makes_of_them(raw: Config) -> None:
    """The decoder of a published config is that of transformers' own config with its fields."""
    kind = transformers.CONFIG_MAPPING[raw["model_type"]]
    theirs = json.loads(kind(**raw).to_json_string(use_diff=False))
    assert read_decoder(raw, "config.json") == read_decoder(theirs, "config.json")
    with pytest.raises(CheckpointError, match="field no_such = 1 is not known"):
        read_decoder(raw | {"no_such": 1}, "config.json")


def test_fields_before_defaults_are_read() -> None:
    """What dots.llm1 reads before it adds its defaults; both scoring functions are one."""
    dots, *_ = PUBLISHED
    more = {"scoring_func": "noaux_tc", "topk_method": "noaux_tc", "moe_layer_freq": 1}
    assert read_decoder(dots | more, "config.json") == read_decoder(dots, "config.json")


def test_fields_that_are_left_out_are_those_of_the_class() -> None:
    """The language model of google/gemma-3-4b-it says no more than this."""
    said: dict[str, Any] = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    whole = json.loads(json.dumps(transformers.Gemma3TextConfig(**said).to_dict(), default=str))
    tokens = {key: whole[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    assert read_decoder(said | tokens, "config.json") == read_decoder(whole, "config.json")
