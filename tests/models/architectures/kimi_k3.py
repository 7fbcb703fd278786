"""A small Kimi K3 as it is published, and what its own code has made of it (kimi_k3_vectors.py).

The names, the fields of config.json and the forms of weights are those of moonshotai/Kimi-K3.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests.models.published_configs import compressed
from tests.models.stored_weights import compressed_mxfp4

#: Recorded: tokens, logits after each of them in float64 and float32, the weights' digest, and the
#: digests of the code.
RECORDED = Path(__file__).with_name("kimi_k3.npz")

VOCABULARY = 128

#: Three kinds of layers, and a block of attention residuals that is cut at the last layer.
TEXT: dict[str, Any] = {
    "_name_or_path": "",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "add_cross_attention": False,
    "architectures": ["KimiLinearForCausalLM"],
    "attn_res_block_size": 2,
    "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiLinearConfig"},
    "bos_token_id": 2,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "situ",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "is_decoder": False,
    "kv_lora_rank": 64,
    "latent_moe_use_norm": True,
    "linear_attn_config": {
        "full_attn_layers": [3, 5],
        "gate_lower_bound": -5.0,
        "head_dim": 32,
        "kda_layers": [1, 2, 4],
        "num_heads": 4,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    },
    "max_position_embeddings": 256,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 4,
    "num_expert_group": 1,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 2,
    "pad_token_id": 0,
    "pruned_heads": {},
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "quantization_config": compressed(
        {"mxfp4-pack-quantized": ["Linear"]},
        [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
    ),
    "rms_norm_eps": 1e-05,
    "routed_expert_hidden_size": 32,
    "routed_scaling_factor": 1.0,
    "tie_encoder_decoder": False,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "transformers_version": "4.56.2",
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 32,
    "vocab_size": VOCABULARY,
}
CONFIG: dict[str, Any] = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"},
    "bos_token_id": 2,
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "ignore_index": -100,
    "image_placeholder": "<|kimi_image_placeholder|>",
    "media_placeholder_token_id": 127,
    "model_type": "kimi_k3",
    "pad_token_id": 0,
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "vision_config": {"mm_hidden_size": 32, "patch_size": 14, "vt_num_hidden_layers": 1},
}

Shapes = dict[str, tuple[int, ...]]
#: The ends of the names of tensors that are float32.
_FLOATS = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")


def _shapes() -> Shapes:
    """The tensors of the language model before experts are packed, by their published names."""
    linear, hidden = TEXT["linear_attn_config"], TEXT["hidden_size"]
    depth, of_heads = linear["head_dim"], linear["head_dim"] * linear["num_heads"]
    heads, latent = TEXT["num_attention_heads"], TEXT["routed_expert_hidden_size"]
    plain, rotated, value = (TEXT[f"{each}_head_dim"] for each in ("qk_nope", "qk_rope", "v"))
    queries, keys = TEXT["q_lora_rank"], TEXT["kv_lora_rank"]
    wide, width, experts = (
        TEXT[each] for each in ("intermediate_size", "moe_intermediate_size", "num_experts")
    )
    both = TEXT["num_shared_experts"] * width
    vocabulary = (TEXT["vocab_size"], hidden)
    found: Shapes = {"model.embed_tokens.weight": vocabulary, "lm_head.weight": vocabulary}
    found |= {"model.norm.weight": (hidden,), **_mixture("model.output_attn_res", hidden)}
    for number in range(TEXT["num_hidden_layers"]):
        name = f"model.layers.{number}"
        for part in ("input_layernorm", "post_attention_layernorm"):
            found[f"{name}.{part}.weight"] = (hidden,)
        for part in ("self_attention_res", "mlp_res"):
            found |= _mixture(f"{name}.{part}", hidden)
        if number + 1 in linear["kda_layers"]:
            own: Shapes = {f"{part}_proj.weight": (of_heads, hidden) for part in "qkvg"}
            own |= {f"{part}_conv1d.weight": (of_heads, 1, 4) for part in "qkv"}
            # A_log has zeros after its entries.
            own |= {"A_log": (depth,), "dt_bias": (of_heads,), "o_norm.weight": (depth,)}
            own |= {"f_a_proj.weight": (depth, hidden), "f_b_proj.weight": (of_heads, depth)}
            own |= {"b_proj.weight": (linear["num_heads"], hidden)}
            own |= {"o_proj.weight": (hidden, of_heads)}
        else:
            own = {
                "q_a_proj.weight": (queries, hidden),
                "q_a_layernorm.weight": (queries,),
                "q_b_proj.weight": (heads * (plain + rotated), queries),
                "kv_a_proj_with_mqa.weight": (keys + rotated, hidden),
                "kv_a_layernorm.weight": (keys,),
                "kv_b_proj.weight": (heads * (plain + value), keys),
                "g_proj.weight": (heads * value, hidden),
                "o_proj.weight": (hidden, heads * value),
            }
        found |= {f"{name}.self_attn.{key}": shape for key, shape in own.items()}
        if number < TEXT["first_k_dense_replace"]:
            found |= _mlp(f"{name}.mlp", wide, hidden)
            continue
        name = f"{name}.block_sparse_moe"
        found |= {
            f"{name}.gate.weight": (experts, hidden),
            f"{name}.gate.e_score_correction_bias": (experts,),
            f"{name}.routed_expert_down_proj.weight": (latent, hidden),
            f"{name}.routed_expert_norm.weight": (latent,),
            f"{name}.routed_expert_up_proj.weight": (hidden, latent),
            **_mlp(f"{name}.shared_experts", both, hidden),
        }
        for expert in range(experts):
            for part, shape in (("w1", (width, latent)), ("w2", (latent, width))):
                found[f"{name}.experts.{expert}.{part}.weight"] = shape
            found[f"{name}.experts.{expert}.w3.weight"] = (width, latent)
    return found


def _mixture(name: str, hidden: int) -> Shapes:
    return {f"{name}_norm.weight": (hidden,), f"{name}_proj.weight": (1, hidden)}


def _mlp(name: str, width: int, hidden: int) -> Shapes:
    found: Shapes = {f"{name}.{part}_proj.weight": (width, hidden) for part in ("gate", "up")}
    return found | {f"{name}.down_proj.weight": (hidden, width)}


def write(folder: Path) -> dict[str, torch.Tensor]:
    """Write the checkpoint; return the numbers of the language model in float32, by name."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(3)
    stored = {"vision_tower.patch_embed.proj.weight": torch.zeros(32, 3, 14, 14).bfloat16()}
    stored["mm_projector.proj.0.weight"] = torch.zeros(64, 32).bfloat16()
    values: dict[str, torch.Tensor] = {}
    for name, shape in _shapes().items():
        draw = torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
        if name.endswith(("bias", "A_log")):
            weight = 0.5 * draw
        elif len(shape) == 1:
            weight = 1 + 0.1 * draw
        else:
            weight = draw if "embed" in name else 1.5 * shape[-1] ** -0.5 * draw
        if name.endswith("A_log"):
            weight[TEXT["linear_attn_config"]["num_heads"] :] = 0
        parts = {name: weight if name.endswith(_FLOATS) else weight.bfloat16()}
        values[name] = parts[name].float()
        if ".experts." in name:
            packed, numbers = compressed_mxfp4(weight.numpy())
            stem = name.removesuffix("weight")
            parts = {f"{stem}{part}": tensor for part, tensor in packed.items()}
            values[name] = torch.from_numpy(numbers)
        stored |= {f"language_model.{key}": part.contiguous() for key, part in parts.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return values


def digest(values: dict[str, torch.Tensor]) -> str:
    """A digest of the numbers of a checkpoint."""
    found = hashlib.sha256()
    for name, value in sorted(values.items()):
        found.update(f"{name} {list(value.shape)}".encode())
        found.update(np.ascontiguousarray(value.numpy()).tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Recorded:
    """What the model's own code made of the checkpoint; see kimi_k3_vectors.py."""

    values: dict[str, torch.Tensor]
    vocabulary: int = VOCABULARY

    def logits(self, tokens: list[int], dtype: torch.dtype) -> NDArray[np.float64]:
        """The logits after each token, of the sequence that is recorded."""
        with np.load(RECORDED) as file:
            assert str(file["weights"]) == digest(self.values), "other weights were recorded"
            assert file["tokens"].tolist() == tokens, "another sequence was recorded"
            name = {torch.float64: "float64", torch.float32: "float32"}[dtype]
            found: NDArray[np.float64] = file[name].astype(np.float64)
        return found


def recorded(folder: Path) -> Recorded:
    """Write the checkpoint; return what was recorded of it."""
    return Recorded(write(folder))
