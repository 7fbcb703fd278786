"""Logits in float32 of architectures with linear attention, against transformers.

Keys and values are in one layer of two or three, the others keep states: what a cut prompt, a fork
or a batch makes of it shows in the logits. conftest.py has the way of a case.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t

#: Two heads of values for one of keys; rotary positions in half of a head.
HYBRID: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5
    },
}  # fmt: skip

EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}

#: As many heads of keys as of values, and latent attention without rotary positions. The first
#: layer is dense; of the others half of the groups of experts is left out.
KIMI: dict[str, Any] = {
    **{key: value for key, value in HYBRID.items() if not key.startswith(("linear", "rope"))},
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_key_value_heads": 4,
    "linear_head_dim": 32,
    "linear_num_heads": 3,
    "linear_conv_kernel_dim": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_expert_group": 4,
    "topk_group": 2,
    "num_shared_experts": 2,
    "routed_scaling_factor": 1.7,
}
del KIMI["head_dim"]

MIXERS = dict.fromkeys(
    ("q_proj", "o_proj", "in_proj_qkvz", "in_proj_qkv", "in_proj_z", "out_proj"), "mxfp4"
)
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "nvfp4")

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

#: Layers with states, columns of the convolution, and the shape of a state.
QWEN = (1, 2 * 32 + 128, 4, 16, 32)

BATCHED = ("qwen3_next", "qwen3_5", "kimi_linear")

CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    "qwen3_next": (
        t.Qwen3NextConfig(**HYBRID, **EXPERTS, intermediate_size=96, mlp_only_layers=[1]),
        torch.bfloat16,
        MIXERS,
    ),
    "qwen3_5": (t.Qwen3_5TextConfig(**HYBRID, intermediate_size=96), torch.bfloat16, MIXERS | MLP),
    "qwen3_5_moe": (t.Qwen3_5MoeTextConfig(**HYBRID, **EXPERTS), torch.bfloat16, MLP),
    # One weight of queries, keys and values beside gates of low rank in another format.
    "kimi_linear": (
        t.KimiLinearConfig(**KIMI),
        torch.bfloat16,
        MIXERS
        | dict.fromkeys(("k_proj", "v_proj", "kv_b_proj", "w1", "w3", "w2"), "mxfp4")
        | dict.fromkeys(("g_a_proj", "g_b_proj", "f_a_proj", "kv_a_proj_with_mqa"), "mxfp8e4m3"),
    ),
}

each = pytest.mark.parametrize("name", CASES)


@each
def test_prompt(name: str, built: Built) -> None:
    built(name).check_prompt()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@each
def test_greedy(name: str, built: Built) -> None:
    built(name).check_greedy()


@pytest.mark.parametrize("name", BATCHED)
def test_fork(name: str, built: Built) -> None:
    """Each has states of its own, in decode and over prompts."""
    case = built(name)
    sequence = case.model.sequence()
    sequence.feed(case.tokens[:13])
    other = sequence.fork()
    other.feed([5, 4, 3])
    for first, last in ((13, 14), (14, len(case.tokens))):
        found = sequence.feed(case.tokens[first:last])
        assert case.deviation(found, slice(first, last)) <= case.tolerance
    again = case.model.sequence()
    again.feed([*case.tokens[:13], 5, 4, 3])
    followed = [each.feed([7])[0] for each in (other, again)]
    assert np.array_equal(*followed)


@pytest.mark.parametrize("name", BATCHED)
def test_states_are_those_of_the_manifest(name: str, built: Built) -> None:
    """One layer has keys and values, the others keep states; a reset forgets both."""
    case = built(name)
    model = case.model.manifest.model
    layers, columns, *state = (2, 3 * 96, 3, 32, 32) if name == "kimi_linear" else QWEN
    assert {key: kept.shape for key, kept in model.states.items()} == {
        "convolution": (layers, 3, columns),
        "delta_rule": (layers, *state),
    }
    (pages,) = model.pages
    # Of latent attention a row for all heads.
    entries, row = (1, 64 + 16) if name == "kimi_linear" else (2, 2 * 32)
    assert pages.shape[0] == entries
    assert model.bytes_per_token == entries * row * 4
    assert model.bytes_per_sequence == 4 * layers * (3 * columns + math.prod(state))
    sequence = case.model.sequence()
    sequence.feed(case.tokens[:9])
    sequence.reset()
    assert case.deviation(sequence.feed(case.tokens), slice(None)) <= case.tolerance


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()
