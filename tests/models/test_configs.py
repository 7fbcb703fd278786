"""Configs: rotary frequencies against transformers, and what is refused, by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.models.architectures import ARCHITECTURES, read_decoder
from mxc.compiler.models.blocks.rope import frequencies, read_rope, tables
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.model import open_model
from mxc.compiler.models.options import choose
from mxc.errors import CheckpointError
from mxc.formats.reference import quantize

Config = dict[str, Any]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

#: Head sizes and contexts of published models, and ramps that are cut.
ROPES: dict[str, tuple[int, Config]] = {
    "llama-3.1": (128, {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0,
                        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192}),
    "llama-3.2": (64, {"rope_theta": 5e5, "rope_type": "llama3", "factor": 32.0,
                       "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}),
    "llama-4-scout": (128, {"rope_theta": 5e5, "rope_type": "llama3", "factor": 16.0,
                            "low_freq_factor": 1.0, "high_freq_factor": 1.0,
                            "original_max_position_embeddings": 8192}),
    "qwen-yarn": (128, {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0,
                        "original_max_position_embeddings": 32768}),
    "yarn-mscale": (64, {"rope_theta": 1e4, "rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                         "mscale_all_dim": 0.7, "beta_fast": 16.0, "beta_slow": 2.0,
                         "truncate": False, "original_max_position_embeddings": 4096}),
    "linear": (128, {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}),
    "default": (96, {"rope_theta": 1e6, "rope_type": "default"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    """In the last bit of a float32, which the power of torch and numpy may differ in."""
    size, rope = ROPES[name]
    config = transformers.LlamaConfig(
        hidden_size=4 * size, num_attention_heads=4, rope_parameters=dict(rope)
    )
    found = read_rope(ConfigFields({"rope_parameters": rope}, "config.json"))
    ours = frequencies(found, size)
    if rope["rope_type"] == "default":
        theirs = 1.0 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        factor = 1.0
    else:
        theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-7)
    cos, sin = tables(found, size, 3)
    np.testing.assert_allclose(cos[2], factor * np.cos(2 * theirs.double().numpy()), rtol=2e-6)
    np.testing.assert_allclose(sin[0], 0)


LONGROPE = {"type": "su", "original_max_position_embeddings": 16, "factor": 4.0,
            "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0]}  # fmt: skip


@pytest.mark.parametrize("length", [4096, 4097])
def test_longrope_of_phi_4_mini(length: int) -> None:
    """As microsoft/Phi-4-mini-instruct has the fields, with other factors."""
    raw: dict[str, Any] = {
        "hidden_size": 3072, "num_attention_heads": 24, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "rope_theta": 10000.0,
    }  # fmt: skip
    factors = {"short_factor": [1 + n / 99 for n in range(48)], "long_factor": [*range(1, 49)]}
    raw["rope_scaling"] = factors | {"type": "longrope"}
    found = read_rope(ConfigFields(raw, "config.json"), fraction=1.0)
    theirs, factor = ROPE_INIT_FUNCTIONS["longrope"](transformers.Phi3Config(**raw), "cpu", length)
    np.testing.assert_allclose(frequencies(found, 96, length), theirs.numpy(), rtol=3e-7)
    cos, _ = tables(found, 128, length)
    np.testing.assert_allclose(cos[2], factor * np.cos(2 * theirs.double().numpy()), rtol=2e-6)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not"),
        ({"rope_scaling": {"type": "longrope"}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0, 0]}}, "wanted a list of positive numb"),
        (
            {"rope_scaling": LONGROPE | {"short_factor": None}},
            "list of .* short_factor, found None",
        ),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 5}, "wanted the 16 of"),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn"}},
            "wanted the 'yarn' of rope_typ",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, r"\(rope_scaling\): factor is missing"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "original_max_position_embeddings",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "x": 1}},
            "field x = 1 is not kno",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "wanted 1 \\(whole heads\\) for partial_rotary_factor, found 0.5",
        ),
        (
            {"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 6.0}},
            "wanted the 6.0 of rope_parameters for rope_theta, found 5.0",
        ),
        (
            {
                "rope_scaling": {"rope_type": "default"},
                "rope_parameters": {"rope_type": "default", "rope_theta": 6.0},
            },
            "wanted what rope_parameters says for rope_scaling",
        ),
        (
            {"rope_scaling": ROPES["llama-3.1"][1] | {"low_freq_factor": 4.5}},
            "wanted at most high_freq_factor",
        ),
        ({"rope_scaling": 3}, "wanted an object or null for rope_scaling, found 3"),
    ],
)
def test_ropes_that_are_refused(raw: Config, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_rope(ConfigFields({"max_position_embeddings": 64} | raw, "config.json"))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (LLAMA | {"hidden_act": "relu"}, "config.json: hidden_act 'relu' is not supported; .*silu"),
        (LLAMA | {"logit_scale": 0.5}, "field logit_scale = 0.5 is not known for this architectu"),
        (LLAMA | {"attention_bias": 1}, "wanted true or false for attention_bias, found 1"),
        (LLAMA | {"num_key_value_heads": 3}, "wanted a multiple of num_key_value_heads = 3"),
        (
            LLAMA | {"num_attention_heads": 6},
            "a multiple of num_attention_heads = 6 for hidden_siz",
        ),
        (LLAMA | {"head_dim": 15}, "wanted an even number .* for head_dim, found 15"),
        (LLAMA | {"rms_norm_eps": None}, "rms_norm_eps is missing"),
        (LLAMA | {"is_decoder": True}, "field is_decoder = True is not known"),
        (LLAMA | {"vocab_size": True}, "wanted a positive integer for vocab_size, found True"),
        (LLAMA | {"sliding_window": 8}, "field sliding_window = 8 is not known"),
        (
            QWEN2 | {"layer_types": ["sliding_attention"]},
            "no sliding_attention without use_sliding",
        ),
        (
            QWEN2 | {"layer_types": ["full_attention"] * 2},
            "wanted a list of 1 times sliding_attent",
        ),
        (QWEN2 | {"use_mrope": True}, "field use_mrope = True is not known"),
        (QWEN3_MOE | {"num_experts_per_tok": 5}, "at most the 4 experts for num_experts_per_tok"),
        (QWEN3_MOE | {"num_local_experts": 5}, "wanted the 4 of num_experts for num_local_experts"),
        (QWEN3_MOE | {"mlp_only_layers": "0"}, "wanted a list of layers for mlp_only_layers"),
        (
            QWEN3_MOE | {"shared_expert_intermediate_size": 9},
            "shared_expert_intermediate_size 9 is not supported",
        ),
        (
            LLAMA | {"model_type": "mistral"},
            "LlamaForCausalLM, model_type 'mistral' is not support",
        ),
        (
            LLAMA | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
            r"supported: .* GptOssForCausalLM \(gpt_oss\), .* LlamaForCausalLM \(llama\), .* "
            r"Mistral.* Mixtral.* Qwen2.* Qwen3.* Qwen3MoeForCausalLM \(qwen3_moe\)",
        ),
    ],
)
def test_configs_that_are_refused(raw: Config, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_decoder(raw, "config.json")


def test_every_field_that_transformers_writes_is_known() -> None:
    """A config of each architecture as its class has it, with nothing set."""
    for each in ARCHITECTURES:
        if each.model_type == "gpt_oss":
            continue  # its reader does not ask for unknown fields; see test_checkpoints.py
        config = transformers.AutoConfig.for_model(each.model_type).to_dict()
        config |= {"architectures": [each.name]}
        # What classes leave out; without it they make no model, or one without attention.
        config |= {
            "deepseek_v2": {"num_experts_per_tok": 6},
            "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
            "granitemoehybrid": {"layer_types": ["full_attention"] * 32},
            "lfm2_moe": {"layer_types": ["full_attention"] * 32},
        }.get(each.model_type, {})
        found = read_decoder(json.loads(json.dumps(config, default=str)), "config.json")
        # Some are called as the whole model with what sees around them.
        names = found.architecture, f"{found.architecture}_text"
        assert each.model_type in names
        assert len(found.layers) == config["num_hidden_layers"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose attention is in mxfp4, in Quark's dialect, with MX activations declared."""
    folder = tmp_path_factory.mktemp("good")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".self_attn." in name]:
        q = quantize(tensors[name].numpy(), "mxfp4", recipe="even")
        rows = q.scales.shape[0]
        tensors[name] = torch.from_numpy(q.elements.reshape(rows, -1))
        tensors[f"{name}_scale"] = torch.from_numpy(q.scales.reshape(rows, -1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    blocks = {"dtype": "fp4", "is_dynamic": False, "qscheme": "per_group", "ch_axis": -1,
              "group_size": 32, "round_method": "half_even", "scale_format": "e8m0",
              "scale_calculation_mode": "even"}  # fmt: skip
    raw["quantization_config"] = {
        "quant_method": "quark",
        "global_quant_config": {
            "weight": blocks,
            "input_tensors": blocks | {"is_dynamic": True, "scale_calculation_mode": "floor"},
        },
        "exclude": ["lm_head", "*mlp*"],
        "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
    }
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def test_declared_activations_are_those_of_the_program(good: Path) -> None:
    """With the recipe that the config states, which is not the one that mxc would take."""
    model = open_model(good)
    assert (model.options.activations, model.options.activation_recipe) == ("mxfp4", "floor")
    assert any("quantized to mxfp4 with recipe floor, and so they are" in n for n in model.notes)
    other = open_model(good, activations="mxfp8")
    assert (other.options.activations, other.options.activation_recipe) == ("mxfp8", "rceil")
    assert any("mxfp4 with recipe floor; --activations says mxfp8" in n for n in other.notes)
    asked = open_model(good, activations="mxfp4")
    assert asked.options.activation_recipe == "floor"
    programs = [m.program() for m in (model, asked, other)]
    assert programs[0] == programs[1] != programs[2]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            {ActivationFormat(format="mxfp4", recipe="even"), None},
            "of some weights none; wanted one for",
        ),
        ({ActivationFormat(format="f8_e4m3", dynamic=False)}, "scales of its own; wanted one"),
        (
            {ActivationFormat(format="nvfp4")},
            r"nvfp4 .*; wanted .*\(mxfp4, .*mxint8\): it is not",
        ),
    ],
)
def test_declarations_that_cannot_be_followed_are_said(
    declared: set[ActivationFormat | None], said: str
) -> None:
    options, notes = choose(8, None, longest=8, dense={"BF16"}, declared=frozenset(declared))
    assert options.activations == "bf16"
    assert any(re.search(said, note) for note in notes)


def test_a_checkpoint_that_is_whole(good: Path, tmp_path: Path) -> None:
    model = open_model(good)
    formats = {each.key: each.format for each in model.bound}
    assert formats["model.layers.0.self_attn.o_proj.weight"] == "mxfp4"
    assert formats["model.layers.0.mlp.gate_up_proj.weight"] == "f32"


Tensors = dict[str, torch.Tensor]
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda t: t.pop(UP),
            rf"tensor {UP} is missing; .*\[96 = intermediate_size, 64 = hidden_s",
        ),
        (lambda t: t.update({UP: t[UP][:, :32].clone()}), rf"config.json says tensor {UP} is .*96"),
        (lambda t: t.update(more=t[UP].clone()), "unknown tensor more: a llama of 1 layers has no"),
        (
            lambda t: t.update({UP: t[UP].to(torch.int32)}),
            "i32: wanted one of bf16, f16, f32, mxfp4",
        ),
    ],
)
def test_tensors_that_are_refused(
    good: Path, tmp_path: Path, edit: Callable[[Tensors], None], said: str
) -> None:
    tensors = load_file(good / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((good / "config.json").read_text())
    with pytest.raises(CheckpointError, match=said):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eos_token_id": 139}, "eos_token_id 139 is outside of the vocabulary, which is 0 to 138"),
        ({"num_hidden_layers": 2}, "model.layers.1.input_layernorm.weight is missing"),
    ],
)
def test_configs_that_contradict_the_tensors(
    good: Path, tmp_path: Path, changes: Config, said: str
) -> None:
    raw = json.loads((good / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | changes))
    (tmp_path / "model.safetensors").write_bytes((good / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=said):
        open_model(tmp_path)


def test_dense_weights_that_are_quantized_are_all_but_the_router(good: Path) -> None:
    model = open_model(good, quantize_dense="mxfp8")
    formats = {each.key: each.format for each in model.bound if each.parameter.matrix}
    assert {k for k, f in formats.items() if f == "mxfp8e4m3"} == {
        "lm_head.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    }
    experts = read_decoder(QWEN3_MOE, "config.json").parameters(lambda name: None)
    kept = [each.key for each in experts if each.matrix and not each.quantizable]
    assert kept == ["model.layers.0.mlp.gate.weight"]
