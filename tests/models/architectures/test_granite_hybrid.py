"""Configs of Granite 4 H as published: with experts, dense, without Mamba, and what is refused."""

from typing import Any

import pytest

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.mamba2 import Mamba2
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.errors import CheckpointError

#: ibm-granite/granite-4.0-h-tiny, with fewer layers.
TINY: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "init_method": "mup",
    "initializer_range": 0.1,
    "intermediate_size": 512,
    "layer_types": ["mamba", "attention", "mamba"],
    "logits_scaling": 6,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131072,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_attention_heads": 12,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "output_router_logits": False,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.01,
    "shared_intermediate_size": 1024,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 100352,
}


def test_layers() -> None:
    found = read_decoder(TINY, "config.json")
    assert [isinstance(layer.attention, Mamba2) for layer in found.layers] == [True, False, True]
    assert found.ropes == ()
    assert found.states == {"convolution": (2, 3, 3072 + 2 * 128), "delta_rule": (2, 48, 128, 64)}
    assert {type(layer.mlp) for layer in found.layers} == {Mixture}
    new = {**TINY, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    assert read_decoder(new, "config.json") == found


def test_without_experts_and_without_mamba() -> None:
    """granite-4.0-h-1b is dense, granite-4.0-1b has attention in all layers, and rotates."""
    dense = read_decoder(TINY | {"num_local_experts": 0, "num_experts_per_tok": 0}, "config.json")
    assert {(type(layer.mlp), layer.mlp_name) for layer in dense.layers} == {(Mlp, "shared_mlp")}
    plain = {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"}
    found = read_decoder(TINY | plain, "config.json")
    assert (len(found.ropes), found.states) == (1, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mamba_n_groups": 2}, "mamba_n_groups 2 is not supported"),
        ({"mamba_d_head": 32}, "wanted mamba_expand .* mamba_n_heads = 64 for mamba_d_head, fo"),
        ({"time_step_limit": [0.0, 1.0]}, "wanted no limits for time_step_limit"),
        ({"layer_types": ["mamba"] * 3}, "wanted one full_attention at least"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_decoder(TINY | change, "config.json")


def test_heads_of_one_group_are_not_divided() -> None:
    with pytest.raises(CheckpointError, match="mamba_n_groups"):
        read_decoder(TINY, "config.json").share(2)


def test_rows_of_dt_stay_plain_where_others_are_quantized() -> None:
    """--quantize-dense takes the rows of gate, values, B and C."""
    found = {each.key: each for each in read_decoder(TINY, "config.json").parameters(lambda _: "")}
    whole = found["model.layers.0.mamba.in_proj.weight"]
    first, columns = 3072 + 3072 + 2 * 128, 1536
    assert whole.shape == (first + 48, columns)
    inputs, steps = whole.apart()
    assert steps.key == "model.layers.0.mamba.dt_proj.weight"
    assert (inputs.shape, inputs.quantizable) == ((first, columns), True)
    assert (steps.shape, steps.quantizable) == ((48, columns), False)
    assert [rows.taken for rows in (*inputs.rows, *steps.rows)] == [(0, first), (first, 48)]
