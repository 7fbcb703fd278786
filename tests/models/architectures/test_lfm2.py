"""Configs of LFM2 as published and as transformers saves them, its routing, and what is refused."""

from typing import Any

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools
from iree.compiler.dialects import func

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.dialects.context import new_context
from mxc.errors import CheckpointError

#: LiquidAI/LFM2-1.2B
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "conv_use_xavier_init": True,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "max_position_embeddings": 128000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_pos_enc": True,
    "vocab_size": 65536,
}
#: LiquidAI/LFM2-8B-A1B
MOE: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "layer_types": ["conv", "full_attention", "conv"],
    "max_position_embeddings": 128000,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "use_expert_bias": True,
    "vocab_size": 65536,
}


def test_both_spellings() -> None:
    found = read_decoder(LFM2, "config.json")
    assert [each is not None for each in found.attentions] == [
        n in (2, 5, 8, 10, 12, 14) for n in range(16)
    ]
    (mlp,) = {layer.mlp for layer in found.layers}
    assert isinstance(mlp, Mlp)
    assert (mlp.width, found.tied) == (8192, True)
    kinds = ["conv" if each is None else "full_attention" for each in found.attentions]
    new = {
        key: value for key, value in LFM2.items() if key not in ("full_attn_idxs", "block_ff_dim")
    }
    new |= {"layer_types": kinds, "intermediate_size": 12288, "tie_embedding": True}
    assert read_decoder(new, "config.json") == found
    moe = read_decoder(MOE, "config.json")
    assert [type(layer.mlp) for layer in moe.layers] == [Mlp, Mlp, Mixture]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_bias": True}, "conv_bias True is not supported"),
        ({"block_use_swiglu": False}, "block_use_swiglu False is not supported"),
        ({"intermediate_size": 8192}, "wanted the 8192 of intermediate_size for block_ff_dim"),
        ({"full_attn_idxs": []}, "wanted one full_attention at least"),
        ({"tie_embedding": False, "tie_word_embeddings": True}, "tie_word_embeddings True is not"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_decoder(LFM2 | change, "config.json")


def test_low_scores_do_not_add_up_to_one() -> None:
    """The sum by which shares are divided has 1e-6 more, as in transformers."""
    mixture = read_decoder(MOE, "config.json").layers[2].mlp
    assert isinstance(mixture, Mixture)
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        kinds = [ir.RankedTensorType.get(shape, ir.F32Type.get()) for shape in ([2, 8], [8])]
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(*kinds, name="route")
            def _(logits: ir.Value, correction: ir.Value) -> tuple[ir.Value, ir.Value]:
                return mixture.routing.build(logits, 3, correction)

        text = str(module)
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    blob = tools.compile_str(text, extra_args=[*flags, "--iree-llvmcpu-target-cpu=host"])
    context = rt.SystemContext(config=rt.Config("local-task"))
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    random = np.random.default_rng(3)
    logits = random.standard_normal((2, 8)).astype(np.float32) - np.float32(13)
    correction = random.permutation(8).astype(np.float32) * np.float32(1e-7)
    shares, chosen = (each.to_host() for each in context.modules.module.route(logits, correction))
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    wanted = np.argsort(-(scores + correction), axis=1)[:, :3]
    assert chosen.tolist() == wanted.tolist()
    best = np.take_along_axis(scores, wanted, 1)
    np.testing.assert_allclose(shares, best / (best.sum(1, keepdims=True) + 1e-6), 1e-5)
    assert (shares.sum(1) < 0.99).all()
