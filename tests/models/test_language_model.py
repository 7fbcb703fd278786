"""Checkpoints whose tensors are not quite those of the model: wrapped, fused, tied, and more.

Each is compared with the plain checkpoint that it was made of: the same parameters with the same
numbers are packed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import BoundModel, open_model
from mxc.errors import CheckpointError
from tests.models.packed_numbers import numbers
from tests.models.published_configs import LLAMA, MISTRAL3, QWEN3, Json
from tests.models.stored_weights import fp8_of_tiles, quark_mxfp4

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
QWEN2: Json = {
    **{key: value for key, value in QWEN3.items() if key not in ("head_dim", "attention_bias")},
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
}


def folder_of(folder: Path, config: Json, tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    apart = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(apart, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def plain(tmp_path: Path) -> Callable[[Json], tuple[BoundModel, Tensors]]:
    """A random checkpoint of a config: the model that it is, and its tensors."""

    def written(config: Json) -> tuple[BoundModel, Tensors]:
        write_decoder(tmp_path / "plain", config)
        return open_model(tmp_path / "plain"), load_file(tmp_path / "plain" / "model.safetensors")

    return written


def assert_same(found: BoundModel, wanted: BoundModel) -> None:
    ours, theirs = numbers(found), numbers(wanted)
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if not np.array_equal(ours[key], theirs[key])] == []


def said(model: BoundModel, text: str) -> bool:
    return any(text in note for note in model.notes)


# ---- wrappers ----


def text_of(config: Json) -> Json:
    return {**config["text_config"], "architectures": ["MistralForCausalLM"],
            "tie_word_embeddings": config.get("tie_word_embeddings", False)}  # fmt: skip


@pytest.mark.parametrize(
    ("stem", "head", "key"),
    [
        ("language_model.model.", "language_model.", "text_config"),
        ("model.language_model.", "", "text_config"),
        ("model.text_model.", "", "text_config"),
        ("language_model.model.", "language_model.", "llm_config"),
        ("model.", "", "text_config"),
    ],
)
def test_wrapped(
    plain: Callable[[Json], tuple[BoundModel, Tensors]],
    tmp_path: Path,
    stem: str,
    head: str,
    key: str,
) -> None:
    wanted, tensors = plain(text_of(MISTRAL3))
    named = {
        head + name if name == HEAD else stem + name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
    }
    named["vision_tower.patch_conv.weight"] = torch.zeros(4, 3, 2, 2)
    named["vision_tower.layers.0.embed_tokens.weight"] = torch.zeros(4, 3)
    named["multi_modal_projector.linear_1.weight"] = torch.zeros(4, 4)
    config = {**MISTRAL3, "eos_token_id": 7}
    config[key] = config.pop("text_config")
    model = open_model(folder_of(tmp_path / "wrapped", config, named))
    assert_same(model, wanted)
    assert model.eos_tokens == (7,)
    assert said(
        model,
        "is a mistral3: its language model, a mistral, is compiled; not compiled: 1 tensors of "
        "multi_modal_projector, 2 tensors of vision_tower",
    )


def test_wrapped_and_tied(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    """Neither config says so: a model without a head has it in its embedding."""
    text = {**text_of(MISTRAL3), "tie_word_embeddings": True}
    wanted, tensors = plain(text)
    config = {key: value for key, value in MISTRAL3.items() if key != "tie_word_embeddings"}
    wrapped = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    model = open_model(folder_of(tmp_path / "wrapped", config, wrapped))
    assert_same(model, wanted)
    assert model.decoder.tied


def test_wrappers_that_are_refused(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    _, tensors = plain(text_of(MISTRAL3))
    folder = tmp_path / "wrapped"
    other = {
        **MISTRAL3,
        "text_config": {**MISTRAL3["text_config"], "model_type": "mllama_text_model"},
    }
    with pytest.raises(
        CheckpointError, match=r"text_config\): architecture .*mllama_text_model'.*not su"
    ):
        open_model(folder_of(folder, other, tensors))
    two = tensors | {f"other.{name}": tensor for name, tensor in tensors.items()}
    with pytest.raises(CheckpointError, match=r"one language model.*found those of model\., other"):
        open_model(folder_of(folder, MISTRAL3, two))
    del tensors[EMBEDDING]
    with pytest.raises(CheckpointError, match=r"one language model.*found none"):
        open_model(folder_of(folder, MISTRAL3, tensors))


# ---- heads that are embeddings ----


def test_tied(plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path) -> None:
    wanted, tensors = plain({**LLAMA, "tie_word_embeddings": True})
    config = {**LLAMA, "tie_word_embeddings": True}
    copied = tensors | {HEAD: tensors[EMBEDDING].clone()}
    model = open_model(folder_of(tmp_path / "copied", config, copied))
    assert_same(model, wanted)
    assert said(model, "lm_head.weight is the embedding once more")
    only_head = {HEAD if name == EMBEDDING else name: each for name, each in tensors.items()}
    assert_same(open_model(folder_of(tmp_path / "head", config, only_head)), wanted)


def test_a_head_that_config_denies(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    """As in transformers, which does not tie them then."""
    wanted, tensors = plain(LLAMA)
    model = open_model(folder_of(tmp_path / "m", {**LLAMA, "tie_word_embeddings": True}, tensors))
    assert_same(model, wanted)
    assert said(model, "their numbers differ: the head is lm_head.weight")


# ---- layers stored as one ----


def fused(tensors: Tensors, names: dict[str, tuple[str, ...]], kinds: list[str]) -> Tensors:
    found = dict(tensors)
    for whole, parts in names.items():
        stem = whole.rpartition(".")[0]
        for kind in kinds:
            each = [f"{stem}.{part}.{kind}" for part in parts]
            if all(name in found for name in each):
                found[f"{whole}.{kind}"] = torch.cat([found.pop(name) for name in each])
    return found


FUSED = {
    "model.layers.0.self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "model.layers.0.mlp.gate_up_proj": ("gate_proj", "up_proj"),
}


def test_fused_layers(plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path) -> None:
    wanted, tensors = plain(QWEN2)
    together = fused(tensors, FUSED, ["weight", "bias"])
    assert "model.layers.0.self_attn.qkv_proj.bias" in together
    assert_same(open_model(folder_of(tmp_path / "fused", QWEN2, together)), wanted)


@pytest.mark.parametrize("changed", ["", "weight", "bias"])
def test_projections_of_one_format_are_one_weight(
    changed: str, plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    _, tensors = plain(QWEN2)
    stem = "model.layers.0.self_attn."
    if changed:
        name = f"{stem}v_proj.{changed}"
        tensors = tensors | {name: tensors[name].double().to(torch.float16)}
    model = open_model(folder_of(tmp_path / "m", QWEN2, tensors))
    found = {each.key.removeprefix(stem) for each in model.bound if each.key.startswith(stem)}
    parts = ["q_proj", "k_proj", "v_proj"] if changed else ["qkv_proj"]
    wanted = {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    assert found == wanted | {"o_proj.weight"}


def test_what_an_architecture_has_as_one(
    plain: Callable[[Json], tuple[BoundModel, Tensors]],
) -> None:
    left_out = ("head_dim", "attention_bias", "mlp_bias", "rope_scaling", "pretraining_tp")
    config = {key: value for key, value in LLAMA.items() if key not in left_out}
    model, _ = plain({**config, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"})
    assert "model.layers.0.self_attn.qkv_proj.weight" in {each.key for each in model.bound}


def test_fused_layers_in_blocks(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    _, tensors = plain(LLAMA)
    config = {
        **LLAMA,
        "quantization_config": {
            "quant_method": "quark",
            "global_quant_config": {
                "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
                           "ch_axis": -1, "scale_format": "e8m0"}
            },
            "exclude": ["lm_head"],
        },
    }  # fmt: skip
    stored = dict(tensors)
    for whole, parts in FUSED.items():
        for part in parts:
            layer = f"{whole.rpartition('.')[0]}.{part}"
            made, _ = quark_mxfp4(stored.pop(f"{layer}.weight").float().numpy())
            stored |= {f"{layer}.{end}": tensor for end, tensor in made.items()}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        layer = f"model.layers.0.{name}"
        made, _ = quark_mxfp4(stored.pop(f"{layer}.weight").float().numpy())
        stored |= {f"{layer}.{end}": tensor for end, tensor in made.items()}
    apart = open_model(folder_of(tmp_path / "apart", config, stored))
    together = fused(stored, FUSED, ["weight", "weight_scale"])
    assert len(together) < len(stored)
    assert_same(open_model(folder_of(tmp_path / "together", config, together)), apart)


def test_fused_layers_that_are_refused(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path
) -> None:
    _, tensors = plain(LLAMA)
    together = fused(tensors, FUSED, ["weight"])
    name = "model.layers.0.self_attn.qkv_proj.weight"
    cut = together | {name: together[name][:-1]}
    with pytest.raises(CheckpointError, match=r"asks for rows 128 \+ 64 \+ 64 of q_proj, k_proj"):
        open_model(folder_of(tmp_path / "cut", LLAMA, cut))
    # Two of the parts share a tile of 128 rows.
    _, tensors = plain({**LLAMA, "intermediate_size": 96})
    together = fused(tensors, FUSED, ["weight"])
    name = "model.layers.0.mlp.gate_up_proj.weight"
    made, _ = fp8_of_tiles(together.pop(name).float().numpy())
    tiled = together | {f"{name.removesuffix('.weight')}.{e}": t for e, t in made.items()}
    config: dict[str, Any] = {
        **LLAMA,
        "intermediate_size": 96,
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["self_attn", "down_proj", "lm_head"],
        },
    }
    config["quantization_config"]["modules_to_not_convert"][0] = "model.layers.0.self_attn"
    with pytest.raises(CheckpointError, match=r"rows 0 to 96 are a layer of their own"):
        open_model(folder_of(tmp_path / "tiled", config, tiled))


# ---- what the program does not read ----

LAYER = "model.layers.0."


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
        ("self_attn.kv_scale",),
        ("self_attn.qkv_proj.output_scale",),
    ],
)
def test_scales_of_the_cache(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path, names: tuple[str, ...]
) -> None:
    wanted, tensors = plain(LLAMA)
    scales = {LAYER + name: torch.full((1,), 0.5 + i) for i, name in enumerate(names)}
    model = open_model(folder_of(tmp_path / "m", LLAMA, tensors | scales))
    assert_same(model, wanted)
    last = "1.5" if len(names) > 1 else "0.5"
    assert said(
        model,
        "key/value cache is of a format that its config does not state, with scales from 0.5 to "
        f"{last} for 1 layers of 1: they are not used, the cache of this program is bf16",
    )


def test_gpt_oss_with_a_cache(tmp_path: Path) -> None:
    """Its own dialect says nothing of a cache."""
    write_gpt_oss(tmp_path, GptOssOptions(num_hidden_layers=1), tokenizer=False, shards=1)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    wanted = open_model(tmp_path)
    more = {f"{LAYER}self_attn.{part}_proj.output_scale": torch.ones(1) for part in "kv"}
    more[f"{LAYER}self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    model = open_model(folder_of(tmp_path / "more", config, tensors | more))
    assert_same(model, wanted)
    assert said(model, "with scales from 1 to 1 for 1 layers of 1")
    assert said(model, "not compiled: 1 tensors of rotary tables")


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"k_scale": torch.ones(1)}, r"k_scale is a scale .* layer 0 has none of its values"),
        ({"kv_scale": torch.zeros(1)}, r"kv_scale is F32 \[1\], \[0\.0\]; .*a positive number"),
        ({"kv_scale": torch.full((1,), torch.nan)}, r"a positive number"),
        ({"kv_scale": torch.ones(3)}, r"a positive number, or one for each of 2 heads"),
    ],
)
def test_scales_that_are_none(
    plain: Callable[[Json], tuple[BoundModel, Tensors]],
    tmp_path: Path,
    scales: Tensors,
    message: str,
) -> None:
    _, tensors = plain(LLAMA)
    named = {f"{LAYER}self_attn.{name}": tensor for name, tensor in scales.items()}
    with pytest.raises(CheckpointError, match=message):
        open_model(folder_of(tmp_path / "m", LLAMA, tensors | named))


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("model.rotary_emb.inv_freq", "1 tensors of rotary tables, which follow from config.json"),
        (f"{LAYER}self_attn.rotary_emb.inv_freq", "1 tensors of rotary tables"),
        (f"{LAYER}self_attn.q_scale", "1 tensors of scales of attention"),
        (f"{LAYER}self_attn.prob_output_scale", "1 tensors of scales of attention"),
        ("mtp.fc.weight", "1 tensors of layers that predict tokens after the next"),
        ("model.layers.1.eh_proj.weight", "1 tensors of layers that predict tokens after the next"),
    ],
)
def test_tensors_that_are_left_out(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path, name: str, note: str
) -> None:
    wanted, tensors = plain(LLAMA)
    config = {**LLAMA, "num_nextn_predict_layers": 1}
    model = open_model(folder_of(tmp_path / "m", config, tensors | {name: torch.ones(1)}))
    assert_same(model, wanted)
    assert said(model, f"not compiled: {note}")


@pytest.mark.parametrize("name", ["model.layers.1.eh_proj.weight", f"{LAYER}self_attn.z_scale"])
def test_tensors_that_are_unknown(
    plain: Callable[[Json], tuple[BoundModel, Tensors]], tmp_path: Path, name: str
) -> None:
    _, tensors = plain(LLAMA)
    with pytest.raises(CheckpointError, match=f"unknown tensor {name}: a llama of 1 layers"):
        open_model(folder_of(tmp_path / "m", LLAMA, tensors | {name: torch.ones(1)}))
