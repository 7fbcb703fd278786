"""Tiny models with experts, and what a library made of their weights, as transformers has them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

#: Rows and columns differ, so that a matrix that is turned shows.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 1,
}

CONFIGS = {
    "gpt-oss": (GptOssForCausalLM, GptOssConfig, {"num_local_experts": 2}),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {"num_local_experts": 2}),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        {"num_experts": 2, "moe_intermediate_size": 32},
    ),
}


def model(name: str) -> torch.nn.Module:
    """A model in bfloat16 whose numbers are of different sizes from row to row."""
    of, config, more = CONFIGS[name]
    torch.manual_seed(0)
    made = of(config(**SMALL, **more, architectures=[of.__name__])).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            rows = parameter.shape[:1] + (1,) * (parameter.ndim - 1)
            parameter.mul_(torch.exp2(torch.randint(-3, 4, rows)))
    return made


def shorten(folder: Path) -> None:
    """config.json, and what it says, as a few lines that do not change."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in folder.glob("*.json"):
        raw = json.loads(file.read_text())
        file.write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")


def write_values(folder: Path, name: str, found: dict[str, torch.Tensor]) -> None:
    """`values.safetensors`: what is stored, with the weights `found` [out, in] in their places.

    In the names and the order of transformers' module in float32, all experts in one tensor.
    """
    stored = load_file(folder / "model.safetensors")
    values = {}
    for key, value in (stored | found).items():
        if key.endswith(("weight_scale", "weight_scale_2", "input_scale")):
            continue
        values[key] = value.float()
    values = stacked(values, turned=name == "gpt-oss")
    wanted = {key: value.shape for key, value in model(name).state_dict().items()}
    assert {key: value.shape for key, value in values.items()} == wanted
    save_file(values, folder / "values.safetensors")


def stacked(values: dict[str, torch.Tensor], turned: bool) -> dict[str, torch.Tensor]:
    """Experts that are apart as one tensor a projection, [E, in, out] where `turned`."""
    done: dict[str, torch.Tensor] = {}
    parts: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    for key, value in values.items():
        layer, mark, rest = key.partition(".experts.")
        number, _, end = rest.partition(".")
        if mark and number.isdigit():
            parts.setdefault((layer, end), {})[int(number)] = value
        else:
            done[key] = value
    for (layer, end), experts in parts.items():
        projection, _, kind = end.rpartition(".")
        whole = torch.stack([experts[number] for number in sorted(experts)])
        if kind == "bias":
            done[f"{layer}.experts.{projection}_bias"] = whole
        elif projection == "gate_proj":
            up = parts[layer, "up_proj.weight"]
            both = torch.cat([whole, torch.stack([up[number] for number in sorted(up)])], dim=1)
            done[f"{layer}.experts.gate_up_proj"] = both
        elif projection != "up_proj":
            done[f"{layer}.experts.{projection}"] = whole.mT if turned else whole
    return {key: value.contiguous() for key, value in done.items()}
