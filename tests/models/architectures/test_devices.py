"""Models on two devices, against transformers: what each block has of heads, widths and rows.

conftest.py has the way of a case.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as t

from mxc.artifact.manifest import REPORT, WEIGHTS, read_json
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.report import Reports

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 138,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
#: Half of a row of o_proj and down_proj is whole blocks.
ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

#: Name -> transformers' config, dtype of what stays plain, formats by the ends of names, devices.
CASES: dict[str, tuple[Any, torch.dtype, dict[str, str], int]] = {
    "llama": (t.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True), torch.bfloat16, MLP, 2),
    # The head is the embedding; every weight is of another format, the second layer slides.
    "qwen2": (
        t.Qwen2Config(
            **SMALL,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=1,
        ),
        torch.bfloat16,
        {
            "q_proj": "mxfp8e4m3",
            "k_proj": "mxfp6e2m3",
            "v_proj": "nvfp4",
            "o_proj": "mxfp4",
            "gate_proj": "nvfp4",
            "up_proj": "nvfp4",
            "down_proj": "nvfp4",
        },
        2,
    ),
    "gpt_oss": (
        t.GptOssConfig(
            **SMALL, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=5
        ),
        torch.bfloat16,
        ATTENTION,
        2,
    ),
    # An expert that all tokens go through, with a gate of its own.
    "qwen2_moe": (
        t.Qwen2MoeConfig(**SMALL, **MIXTURE, num_experts=4, shared_expert_intermediate_size=128),
        torch.bfloat16,
        MLP,
        2,
    ),
    # q_proj, k_proj and v_proj are one tensor, gate_proj and up_proj another one.
    "phi3": (
        t.Phi3Config(**SMALL),
        torch.bfloat16,
        {"qkv_proj": "mxfp4", "gate_up_proj": "mxfp4"},
        2,
    ),
    # Attention and MLP side by side, four devices.
    "cohere2": (
        t.Cohere2Config(**SMALL | {"num_key_value_heads": 4, "vocab_size": 140}, sliding_window=6),
        torch.bfloat16,
        MLP,
        4,
    ),
    # All heads share one row a token, which is on both devices.
    "deepseek_v3": (
        t.DeepseekV3Config(
            **SMALL | {"num_key_value_heads": 4},
            **MIXTURE,
            n_routed_experts=4,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=64,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
            attention_bias=True,
        ),
        torch.bfloat16,
        MLP | {"q_b_proj": "mxfp4", "kv_b_proj": "mxfp8e4m3", "o_proj": "mxfp8e4m3"},
        2,
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


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()


@each
def test_each_has_its_share_of_the_weights(name: str, built: Built) -> None:
    model = built(name).model
    file = model.path / REPORT
    reports = Reports.from_dict(read_json(file.read_text(), str(file)), str(file))
    devices = CASES[name][3]
    assert len(reports.devices) == devices == model.manifest.model.devices
    own = [each.bytes - each.on_every_device for each in reports.devices]
    # Biases of sums are on the first device.
    assert max(own) <= 1.05 * min(own)
    entries = read_archive(model.path / WEIGHTS).values()
    assert sum(entry.bytes for entry in entries) == sum(each.bytes for each in reports.devices)
