"""Small random checkpoints with the configs, names and layouts of published ones."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from published_configs import (
    GPT_OSS,
    LAYERS,
    LLAMA,
    MISTRAL3,
    QWEN3,
    QWEN3_MOE,
    QWEN3_VL,
    Json,
    compressed,
    modelopt,
    quark,
)
from safetensors.torch import load_file, save_file
from stored_weights import (
    Store,
    compressed_mxfp4,
    compressed_nvfp4,
    fp8_of_rows,
    fp8_of_tensor,
    fp8_of_tiles,
    int4_of_groups,
    modelopt_nvfp4,
    quark_mxfp4,
)

Tensors = dict[str, torch.Tensor]

#: Experts of all of a layer in one tensor, and as libraries take them apart.
_EXPERTS = re.compile(r"(?P<stem>.*\.experts)\.(?P<part>gate_up_proj|down_proj)(?P<bias>_bias)?")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint on the hub, `model`, whose config and names this one has.

    `stores`: how the layers whose names match the pattern are stored, the first one that does.
    `config`, `quantization`: config.json and its quantization_config; `beside`:
    hf_quant_config.json.
    `names`: what parts of names are called in the file. `extra`: tensors that the program does not
    read, made of those that it reads. `notes`: what the notes of the artifact must say.
    """

    model: str
    config: Json
    stores: Mapping[str, Store]
    quantization: Json
    beside: Json | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[Tensors], Tensors] = lambda plain: {}
    notes: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16


def caches(form: str, *parts: str, shape: tuple[int, ...] = ()) -> Tensors:
    """Scales of the caches of all layers, under names of the form `form`."""
    return {
        form.format(layer=layer, part=part): torch.full(shape, 0.03 + 0.01 * number)
        for layer in range(LAYERS)
        for number, part in enumerate(parts)
    }


ATTENTION = r".*self_attn\.[qkvo]_proj"
MLP = r".*mlp\.(experts\.\d+\.)?(gate|up|down|gate_up)_proj"
LINEAR = f"{ATTENTION}|{MLP}"

_LAYER = "model.layers.{layer}.self_attn."
_FP8_CACHE = rf"key/value cache is f8_e4m3.*{LAYERS} layers.*the cache of this program is f32"

_NVIDIA_LLAMA = modelopt(["lm_head"])
_NVIDIA_MOE = modelopt(
    ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(LAYERS))], cache=True
)
_NVIDIA_MIXED = modelopt(
    ["lm_head"],
    layers={
        **{
            f"model.layers.{n}.self_attn.{part}_proj": {"quant_algo": "FP8"}
            for n in range(LAYERS)
            for part in "qkvo"
        },
        **{
            f"model.layers.{n}.mlp": {"quant_algo": "NVFP4", "group_size": 16}
            for n in range(LAYERS)
        },
    },
)

#: By a short name.
PUBLISHED: dict[str, Published] = {
    "amd-llama-mxfp4": Published(
        model="amd/Llama-3.3-70B-Instruct-MXFP4-Preview",
        config=LLAMA,
        quantization=quark(["lm_head"], cache=True),
        stores={LINEAR: quark_mxfp4},
        extra=lambda plain: caches(_LAYER + "{part}_proj.output_scale", "k", "v"),
        notes=(_FP8_CACHE,),
    ),
    "amd-qwen3-moe-mxfp4": Published(
        model="amd/Qwen3-235B-A22B-Instruct-2507-MXFP4",
        config=QWEN3_MOE,
        quantization=quark(["re:.*self_attn.*", "*mlp.gate", "lm_head"]),
        stores={MLP: quark_mxfp4},
    ),
    "amd-gpt-oss": Published(
        model="amd/gpt-oss-20b-MoE-Quant-W-MXFP4-A-FP8-KV-FP8",
        config=GPT_OSS,
        quantization=quark(["*self_attn*", "*router*", "lm_head"], inputs="fp8_e4m3", cache=True),
        stores={MLP: quark_mxfp4},
        extra=lambda plain: caches(_LAYER + "{part}_proj.output_scale", "k", "v", shape=(1,)),
        notes=(_FP8_CACHE,),
    ),
    "nvidia-llama-nvfp4": Published(
        model="nvidia/Llama-3.3-70B-Instruct-NVFP4",
        config=LLAMA,
        quantization=_NVIDIA_LLAMA[1],
        beside=_NVIDIA_LLAMA[0],
        stores={LINEAR: modelopt_nvfp4},
        extra=lambda plain: {
            f"model.layers.{n}.self_attn.{part}_proj.{part}_scale": torch.tensor(0.03)
            for n in range(LAYERS)
            for part in "kv"
        },
        notes=(_FP8_CACHE,),
    ),
    "nvidia-qwen3-moe-nvfp4": Published(
        model="nvidia/Qwen3-30B-A3B-NVFP4",
        config=QWEN3_MOE,
        quantization=_NVIDIA_MOE[1],
        beside=_NVIDIA_MOE[0],
        stores={LINEAR: modelopt_nvfp4},
        # Scales that are 1 are not written.
        notes=(r"key/value cache is f8_e4m3, and has no scales",),
    ),
    "nvidia-mixed": Published(
        model="nvidia/Qwen3.5-397B-A17B-NVFP4-V2, its language model in the place of another",
        config=QWEN3,
        quantization=_NVIDIA_MIXED[1],
        beside=_NVIDIA_MIXED[0],
        stores={ATTENTION: fp8_of_tensor, MLP: modelopt_nvfp4},
        extra=lambda plain: {
            f"model.layers.{n}.self_attn.{part}_proj.{part}_scale": torch.tensor(0.03)
            for n in range(LAYERS)
            for part in "kv"
        },
        notes=(_FP8_CACHE,),
    ),
    "redhat-llama-nvfp4": Published(
        model="RedHatAI/Llama-3.3-70B-Instruct-NVFP4",
        config=LLAMA,
        quantization=compressed({"nvfp4-pack-quantized": ["Linear"]}, ["lm_head"], cache=True),
        stores={LINEAR: compressed_nvfp4},
        extra=lambda plain: {
            name: scale.bfloat16()
            for name, scale in caches(_LAYER + "{part}_scale", "k", "v", shape=(1,)).items()
        },
        notes=(_FP8_CACHE,),
    ),
    "redhat-qwen3-nvfp4": Published(
        model="RedHatAI/Qwen3-8B-NVFP4",
        config=QWEN3,
        quantization=compressed({"nvfp4-pack-quantized": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: compressed_nvfp4},
    ),
    "unsloth-mixed": Published(
        model="unsloth/Qwen3.6-27B-NVFP4, its language model in the place of another",
        config={**QWEN3, "unsloth_fixed": True},
        quantization=compressed(
            {
                "float-quantized": [
                    r"re:.*self_attn\.(q|k|v|o)_proj$",
                    "lm_head",
                    r"re:.*layers\.(62|63)\.mlp\.(gate|up|down)_proj$",
                ],
                "nvfp4-pack-quantized": [r"re:.*mlp\.(gate|up|down)_proj$"],
            },
            [],
        ),
        stores={f"{ATTENTION}|lm_head": fp8_of_rows, MLP: compressed_nvfp4},
    ),
    "nm-qwen3-moe-mxfp4a16": Published(
        model="nm-testing/Qwen3-30B-A3B-MXFP4A16",
        config=QWEN3_MOE,
        quantization=compressed(
            {"mxfp4-pack-quantized": ["Linear"]}, ["lm_head", "re:.*mlp.gate$"]
        ),
        stores={LINEAR: compressed_mxfp4},
    ),
    "redhat-mistral-small-nvfp4": Published(
        model="RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-NVFP4",
        config=MISTRAL3,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ),
        stores={rf"language_model\.({LINEAR})": compressed_nvfp4},
        notes=(r"its language model, a mistral.*not compiled: \d+ tensors of .*projector.*vision",),
    ),
    "redhat-qwen3-vl-nvfp4": Published(
        model="RedHatAI/Qwen3-VL-8B-Instruct-NVFP4",
        config=QWEN3_VL,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["re:.*lm_head", "re:visual.*", "re:model.visual.*"],
        ),
        stores={rf"model\.language_model\.({LINEAR})": compressed_nvfp4},
        notes=(
            r"its language model, a qwen3, is compiled; not compiled: \d+ tensors of model.vis",
        ),
    ),
    "qwen3-fp8": Published(
        model="Qwen/Qwen3-8B-FP8",
        config={**QWEN3, "hidden_size": 192, "intermediate_size": 320},
        quantization={
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [
                "lm_head",
                "model.layers.0.input_layernorm",
                "model.layers.0.post_attention_layernorm",
                "model.layers.0.self_attn.v_proj",
            ],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        stores={r"(?!.*v_proj)" + f"(?:{LINEAR})": fp8_of_tiles},
        notes=(r"5 weights are f8_e4m3 in .* packed as f32; they meet floats, not .* in f8_e4m3",),
    ),
    "kimi-int4": Published(
        model="moonshotai/Kimi-K2-Thinking, with experts of Qwen3",
        config=QWEN3_MOE,
        quantization=compressed(
            {"pack-quantized": ["Linear"]},
            [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                "re:.*mlp.gate",
            ],
        ),
        stores={MLP: int4_of_groups},
    ),
}


def _library(config: Json) -> Any:
    return (
        transformers.AutoModelForImageTextToText
        if "text_config" in config
        else transformers.AutoModelForCausalLM
    )


def _random_model(config: Json, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose activations keep their size from layer to layer."""
    known = transformers.AutoConfig.for_model(**config)
    model = _library(config).from_config(known)
    random = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() == 1:
            weight.data = (0 if name.endswith("bias") else 1) + 0.1 * draw
        else:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.tie_weights()
    rounded: torch.nn.Module = model.to(dtype)
    return rounded


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT if tensor.dim() == 2 else tensor


def _apart(plain: Tensors) -> Tensors:
    """Experts that are one tensor, [E, in, out], as layers of their own."""
    found: Tensors = {}
    for name, tensor in plain.items():
        match = _EXPERTS.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        for number, each in enumerate(tensor):
            layer = f"{match['stem']}.{number}.{match['part']}"
            found[f"{layer}.bias" if match["bias"] else f"{layer}.weight"] = _turned(each)
    return found


def _together(values: Tensors, plain: Tensors) -> Tensors:
    """The numbers of what `_apart` has taken apart."""
    found = {name: values[name] for name in plain if name in values}
    for name in plain.keys() - found.keys():
        match = _EXPERTS.fullmatch(name)
        assert match is not None
        kind = "bias" if match["bias"] else "weight"
        parts = [
            _turned(values[f"{match['stem']}.{number}.{match['part']}.{kind}"])
            for number in range(plain[name].shape[0])
        ]
        found[name] = torch.stack(parts)
    return found


def write_published(folder: Path, published: Published) -> None:
    """`checkpoint`, as it is published, and `reference`, plain float32 numbers of the same."""
    config = dict(published.config)
    _random_model(config, published.dtype).save_pretrained(folder / "plain")
    plain = load_file(folder / "plain" / "model.safetensors")
    stored: Tensors = {}
    values: Tensors = {}
    for name, weight in _apart(plain).items():
        module, _, part = name.rpartition(".")
        stores = (s for p, s in published.stores.items() if re.fullmatch(p, module))
        store = next(stores, None) if part == "weight" and weight.dim() == 2 else None
        if store is None:
            stored[name], values[name] = weight, weight.float()
            continue
        parts, numbers = store(weight.float().numpy())
        stored |= {f"{module}.{end}": tensor for end, tensor in parts.items()}
        values[name] = torch.from_numpy(numbers)
    stored |= published.extra(stored)
    named = {}
    for name, tensor in stored.items():
        for ours, theirs in published.names.items():
            name = name.replace(ours, theirs)
        named[name] = tensor
    _write(folder / "checkpoint", named, {**config, "quantization_config": published.quantization})
    if published.beside is not None:
        text = json.dumps(published.beside)
        (folder / "checkpoint" / "hf_quant_config.json").write_text(text)
    _write(folder / "reference", _together(values, plain), config)


def _write(folder: Path, tensors: Tensors, config: Json) -> None:
    folder.mkdir()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def reference_logits(folder: Path, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    """transformers' logits [length, vocabulary] of the numbers of a checkpoint, in float64."""
    config = json.loads((folder / "reference" / "config.json").read_text())
    eager = {"attn_implementation": "eager"}
    if "num_experts_per_tok" in config:
        eager["experts_implementation"] = "eager"
    model = _library(config).from_pretrained(folder / "reference", dtype=dtype, **eager)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0].double()
