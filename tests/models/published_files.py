"""Writes the checkpoints of published_checkpoints.py, and asks transformers for their logits."""

import copy
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.models.published_checkpoints import Published, Tensors
from tests.models.published_configs import IMAGES, Json

#: Experts of all of a layer in one tensor, and as libraries take them apart.
_EXPERTS = re.compile(r"(?P<stem>.*\.experts)\.(?P<part>gate_up_proj|down_proj)(?P<bias>_bias)?")


#: transformers has experts of this model as [E, in, out], gate before up.
_TURNED = "llama4"


def _library(config: Json) -> Any:
    return (
        transformers.AutoModelForImageTextToText
        if "vision_config" in config
        else transformers.AutoModelForCausalLM
    )


def _random_model(config: Json, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose activations keep their size from layer to layer."""
    known = transformers.AutoConfig.for_model(**config)
    model = _library(config).from_config(known)
    random = torch.Generator().manual_seed(1)
    stored = model.state_dict().keys()
    # Biases of routers, which are zero in a new model.
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name in stored]
    for name, weight in [*model.named_parameters(), *biases]:
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


def _apart(plain: Tensors, model_type: str) -> Tensors:
    """Experts that are one tensor as layers of their own.

    Those of gpt-oss are [E, in, out], and gate and up stay one layer; those of others become
    layers [out, in], for gate and up apart.
    """
    found: Tensors = {}
    for name, tensor in plain.items():
        match = _EXPERTS.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        for number, each in enumerate(tensor):
            if model_type != "gpt_oss":
                own = each.mT if model_type == _TURNED else each
                found |= _halves(f"{match['stem']}.{number}", match["part"], own)
                continue
            layer = f"{match['stem']}.{number}.{match['part']}"
            found[f"{layer}.bias" if match["bias"] else f"{layer}.weight"] = _turned(each)
    return found


def _halves(stem: str, part: str, weight: torch.Tensor) -> Tensors:
    """Gate and up of an expert, or down."""
    if part == "down_proj":
        return {f"{stem}.down_proj.weight": weight}
    gate, up = weight.chunk(2)
    return {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}


def _together(values: Tensors, plain: Tensors, model_type: str) -> Tensors:
    """The numbers of what `_apart` has taken apart."""
    found = {name: values[name] for name in plain if name in values}
    for name in plain.keys() - found.keys():
        match = _EXPERTS.fullmatch(name)
        assert match is not None
        if model_type != "gpt_oss":
            halves = ["gate_proj", "up_proj"] if match["part"] == "gate_up_proj" else ["down_proj"]
            whole = torch.stack(
                [
                    torch.cat([values[f"{match['stem']}.{n}.{half}.weight"] for half in halves])
                    for n in range(plain[name].shape[0])
                ]
            )
            found[name] = whole.mT if model_type == _TURNED else whole
            continue
        kind = "bias" if match["bias"] else "weight"
        parts = [
            _turned(values[f"{match['stem']}.{number}.{match['part']}.{kind}"])
            for number in range(plain[name].shape[0])
        ]
        found[name] = torch.stack(parts)
    return found


def write_published(folder: Path, published: Published) -> Tensors:
    """`checkpoint`, as it is published, and `reference`, plain float32 numbers of the same.

    Returns the numbers of the weights that are stored in another form, by their names in the file.
    """
    # transformers writes into the dictionaries that it is given.
    config = copy.deepcopy(published.config)
    _random_model(copy.deepcopy(config), published.dtype).save_pretrained(folder / "plain")
    plain = load_file(folder / "plain" / "model.safetensors")
    stored: Tensors = {}
    values: Tensors = {}
    packed: list[str] = []
    for name, weight in _apart(plain, config["model_type"]).items():
        module, _, part = name.rpartition(".")
        stores = (s for p, s in published.stores.items() if re.fullmatch(p, module))
        store = next(stores, None) if part == "weight" and weight.dim() == 2 else None
        if store is None:
            stored[name], values[name] = weight, weight.float()
            continue
        parts, numbers = store(weight.float().numpy())
        stored |= {f"{module}.{end}": tensor for end, tensor in parts.items()}
        values[name] = torch.from_numpy(numbers)
        packed.append(name)
    stored |= published.extra(stored)
    named = {_called(name, published): tensor for name, tensor in stored.items()}
    said = published.quantization
    declared = {} if said is None else {"quantization_config": said}
    _write(folder / "checkpoint", named, {**config, **declared})
    if published.beside is not None:
        text = json.dumps(published.beside)
        (folder / "checkpoint" / "hf_quant_config.json").write_text(text)
    _write(folder / "reference", _together(values, plain, config["model_type"]), config)
    return {_called(name, published): values[name] for name in packed}


def _called(name: str, published: Published) -> str:
    for ours, theirs in published.names.items():
        name = name.replace(ours, theirs)
    return name


def _write(folder: Path, tensors: Tensors, config: Json) -> None:
    folder.mkdir()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def reference_model(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """transformers' model of the numbers of a checkpoint."""
    config = json.loads((folder / "reference" / "config.json").read_text())
    eager = {"attn_implementation": "eager"}
    text = config.get("text_config", config)
    experts = any(key.startswith("num_experts_per_tok") for key in text)
    if experts or text.get("enable_moe_block"):
        eager["experts_implementation"] = "eager"
    model: torch.nn.Module = _library(config).from_pretrained(
        folder / "reference", dtype=dtype, **eager
    )
    return model


@dataclass(frozen=True)
class Numbers:
    """transformers with the numbers of a checkpoint, which `write_published` wrote to `folder`."""

    folder: Path

    @property
    def vocabulary(self) -> int:
        """Number of tokens that stand for text."""
        return IMAGES

    @cached_property
    def model(self) -> torch.nn.Module:
        """In float32."""
        return reference_model(self.folder, torch.float32)

    def logits(self, tokens: list[int], dtype: torch.dtype) -> NDArray[np.float64]:
        """What follows each token [length, all tokens]."""
        model = self.model if dtype == torch.float32 else reference_model(self.folder, dtype)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        found: NDArray[np.float64] = logits[0].double().numpy()
        return found
