"""Fields that a config leaves out: the model is that of transformers' default, or it is refused."""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t

import mxc
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.decoder import Decoder
from mxc.errors import CheckpointError
from tests.models.architectures.built import model_class, random_model
from tests.models.architectures.cases import CASES, GEMMA4
from tests.models.architectures.dense_cases import (
    FOUR_EXPERTS,
    LARGE,
    ONE,
    SEES_ALL,
    SLIDING,
    TWO,
    longrope,
)

_LATENT: dict[str, Any] = TWO | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 64,
    "n_routed_experts": 32,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 4,
    "topk_group": 2,
}
#: The last layer is neither the sixth nor full.
_SEVEN = GEMMA4 | {"num_hidden_layers": 7, "layer_types": [*6 * ["sliding_attention"], SEES_ALL]}

#: Architectures whose cases elsewhere are published checkpoints, or state less.
OTHERS: dict[str, Any] = {
    "deepseek_v2": t.DeepseekV2Config(**_LATENT, topk_method="group_limited_greedy"),
    "deepseek_v3": t.DeepseekV3Config(**_LATENT, first_k_dense_replace=1),
    "exaone4": t.Exaone4Config(**TWO, **SLIDING),
    "gemma2": t.Gemma2Config(**TWO | LARGE, sliding_window=8),
    "gemma3": t.Gemma3TextConfig(**TWO | LARGE, **SLIDING),
    "gemma4_text": t.Gemma4TextConfig(**_SEVEN, hidden_size_per_layer_input=0),
    "gemma4_unified_text": t.Gemma4UnifiedTextConfig(**_SEVEN),
    "glm4_moe": t.Glm4MoeConfig(**TWO | LARGE, n_routed_experts=8, n_group=2, topk_group=1),
    "glm4_moe_lite": t.Glm4MoeLiteConfig(**_LATENT),
    "granite": t.GraniteConfig(**ONE),
    "hunyuan": t.HunYuanDenseV1Config(**ONE | LARGE),
    "llama4": t.Llama4TextConfig(
        **TWO | LARGE,
        intermediate_size_mlp=160,
        num_local_experts=4,
        attention_chunk_size=16,
        floor_scale=8,
    ),
    "ministral3": t.Ministral3Config(**ONE | LARGE),
    "mistral4": t.Mistral4Config(**_LATENT),
    "mixtral": t.MixtralConfig(**TWO, **FOUR_EXPERTS),
    "phi3, original": t.Phi3Config(**ONE | {"max_position_embeddings": 9000}, **longrope(4096)),
    "qwen3": t.Qwen3Config(**TWO | LARGE, use_sliding_window=True, max_window_layers=1),
    "seed_oss": t.SeedOssConfig(**ONE | LARGE),
    "smollm3": t.SmolLM3Config(**TWO | {"num_hidden_layers": 4}),
    "starcoder2": t.Starcoder2Config(**ONE, sliding_window=8),
}
CONFIGS = {name: case.config for name, case in CASES.items() if case.config} | OTHERS

#: Token ids do not change logits. Of these architectures transformers states a list where a config
#: has null.
_ENDS = ("cwm", "glm4")
#: Only the number of heads makes a model: with transformers' default latent attention fails.
_HEADS = "num_key_value_heads"
#: Counts layers that are no part of the model.
_LATER = ("num_nextn_predict_layers", "num_mtp_layers")


def stated(config: Any) -> dict[str, Any]:
    """Every field as transformers states it."""
    raw: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return raw | {"architectures": [model_class(config).__name__]}


def record(raw: dict[str, Any]) -> Decoder | None:
    """The model of a config; None if it is refused."""
    try:
        return read_decoder(raw, "config.json")
    except CheckpointError:
        return None


def completed(config: Any, raw: dict[str, Any]) -> Decoder | None:
    """The model with every field stated as transformers completes them; None if it refuses."""
    try:
        whole = type(config).from_dict(copy.deepcopy(raw))
    except Exception:
        return None
    return record(stated(whole))


def without(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The config without one of its fields, or of those of an object in it, by name."""
    found = {key: {k: v for k, v in raw.items() if k != key} for key in raw}
    for key, inner in raw.items():
        if isinstance(inner, dict):
            for name, less in without(inner).items():
                found[f"{key}.{name}"] = raw | {key: less}
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_left_out_has_the_default_of_transformers(name: str) -> None:
    config = CONFIGS[name]
    raw = stated(config)
    assert record(raw) is not None
    beside = {"model_type", "architectures", "bos_token_id", "pad_token_id", *_LATER}
    beside |= set() if name in _ENDS else {"eos_token_id"}
    beside |= {_HEADS} if "kv_lora_rank" in raw else set()
    wrong = []
    for field, less in without(raw).items():
        found = None if field in beside else record(less)
        if found is not None and found != completed(config, less):
            wrong.append(field)
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("deepseek_v3", "norm_topk_prob"),
        ("deepseek_v3", "rope_interleave"),
        ("kimi_linear", "moe_renormalize"),
        ("mistral4", "norm_topk_prob"),
        ("mistral4", "rope_interleave"),
    ],
)
def test_null_is_false(name: str, field: str) -> None:
    raw = stated(CONFIGS[name])
    found = record(raw | {field: None})
    assert found is not None
    assert found == record(raw | {field: False})
    assert found != record(raw)


@pytest.mark.parametrize(
    ("name", "field", "other"),
    [
        ("gemma2", "attn_logit_softcapping", 50.0),
        ("gemma2", "final_logit_softcapping", 30.0),
        ("llama4", "attention_chunk_size", 8192),
        ("deepseek_v3", "q_lora_rank", 1536),
    ],
)
def test_null_is_none_and_not_the_default(name: str, field: str, other: float) -> None:
    raw = stated(OTHERS[name])
    found = record(raw | {field: None})
    assert found is not None
    assert found != record(raw | {field: other})


@pytest.mark.parametrize("name", ["ernie4_5", "seed_oss", "llama4"])
def test_heads_of_null_are_parts_of_the_hidden_size(name: str) -> None:
    raw = stated(CONFIGS[name])
    depth = raw["hidden_size"] // raw["num_attention_heads"]
    assert record(raw | {"head_dim": None}) == record(raw | {"head_dim": depth})


@pytest.mark.parametrize("name", _ENDS)
def test_tokens_that_end_a_text(name: str) -> None:
    raw = stated(CONFIGS[name])
    ends = tuple(type(CONFIGS[name])().eos_token_id)
    for given in (raw | {"eos_token_id": None}, without(raw)["eos_token_id"]):
        found = record(given)
        assert found is not None
        assert found.eos_tokens == ends


def test_an_original_context_beside_the_scaling_is_4096() -> None:
    raw = stated(CONFIGS["phi3"])
    raw.pop("original_max_position_embeddings")
    said = r"wanted the 16 of the scaling \(transformers takes 4096 .*, found None"
    with pytest.raises(CheckpointError, match=said):
        read_decoder(raw, "config.json")


def test_the_last_layer_of_gemma_4_is_full() -> None:
    for name in ("gemma4_text", "gemma4_unified_text"):
        raw = stated(OTHERS[name])
        types = 7 * ["sliding_attention"]
        assert record(raw | {"layer_types": types}) == record(raw)


def test_logits_of_gemma_2_without_soft_caps(tmp_path: Any) -> None:
    config = OTHERS["gemma2"]
    model = random_model(config, torch.float32)
    model.save_pretrained(tmp_path / "model")
    place = tmp_path / "model" / "config.json"
    raw = json.loads(place.read_text())
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        raw.pop(field)
    place.write_text(json.dumps(raw))
    reference = t.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, attn_implementation="eager"
    )
    tokens = list(range(1, 33))
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    options: dict[str, Any] = {"activations": "f32", "listing": False, "max_sequence_length": 64}
    mxc.compile(tmp_path / "model", "cpu", tmp_path / "model.mxc", **options)
    found = np.asarray(mxc.load(tmp_path / "model.mxc").sequence().feed(tokens))
    assert np.abs(found - wanted).max() < 1e-4 * np.sqrt(np.mean(wanted**2))
