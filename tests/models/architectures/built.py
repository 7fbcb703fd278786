"""A small checkpoint of an architecture, its artifact, and what transformers makes of it.

Each checkpoint is written by transformers; then the matrices that the case names become blocks in
the dialect of compressed-tensors, and the others stay as they are. The reference is transformers'
model with what our numpy reference makes of those blocks.
"""

import copy
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import mxc
from mxc.compiler.models.architectures import ARCHITECTURES
from mxc.formats.reference import dequantize, quantize
from tests.models.architectures.dense_cases import Case
from tests.models.compared import Reference

#: Format -> its name in a config of compressed-tensors, bits, elements that share a scale.
DECLARED = {
    "mxfp4": ("mxfp4-pack-quantized", 4, 32),
    "mxfp6e2m3": ("mxfp6-pack-quantized", 6, 32),
    "mxfp8e4m3": ("mxfp8-quantized", 8, 32),
    "nvfp4": ("nvfp4-pack-quantized", 4, 16),
}

#: What --quantize-dense makes of a case's matrices.
DENSE = "mxfp8e4m3"

Tensors = dict[str, torch.Tensor]


def model_class(config: Any) -> Any:
    """transformers' class of a config, by our name of the architecture."""
    names = {each.model_type: each.name for each in ARCHITECTURES}
    return getattr(transformers, names[config.model_type])


def random_model(config: Any, dtype: torch.dtype) -> Any:
    """A model whose activations keep their size from layer to layer."""
    model = model_class(config)(config)
    random = torch.Generator().manual_seed(1)
    for name, weight in [*model.named_parameters(), *_stored_buffers(model)]:
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() == 1:
            weight.data = ((0 if name.endswith("bias") else 1) + 0.1 * draw).to(weight.dtype)
        else:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.tie_weights()
    return model.to(dtype)


def _stored_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that checkpoints have: biases of routers, which are zero in a new model."""
    stored = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in stored]


def packed(name: str, weight: torch.Tensor, format: str) -> tuple[Tensors, torch.Tensor]:
    """What compressed-tensors stores of a weight, and its value in float32."""
    values = weight.float().numpy()
    q = quantize(values, format, recipe=None if format == "nvfp4" else "even")
    stem = name.removesuffix("weight")
    rows = values.shape[0]
    elements = torch.from_numpy(q.elements.reshape(rows, -1).copy())
    scales = torch.from_numpy(q.scales.reshape(rows, -1).copy())
    stored = {f"{stem}weight_packed": elements, f"{stem}weight_scale": scales}
    if format.startswith("mxfp8"):
        stored = {
            f"{stem}weight": elements.view(torch.float8_e4m3fn),
            f"{stem}weight_scale": scales,
        }
    if q.tensor_scale is not None:
        stored[f"{stem}weight_scale"] = scales.view(torch.float8_e4m3fn)
        stored[f"{stem}weight_global_scale"] = torch.tensor([1 / q.tensor_scale])
    return stored, torch.from_numpy(dequantize(q).reshape(values.shape).copy())


def write(folder: Path, case: Case) -> Tensors:
    """Write the checkpoint, in blocks, to `folder`; the values of its tensors in float32."""
    random_model(case.config, case.dtype).save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    stored: Tensors = {}
    values: Tensors = {}
    modules: dict[str, list[str]] = {}
    for tensor, weight in plain.items():
        module = tensor.removesuffix(".weight")
        end = module.rpartition(".")[2]
        format = case.formats.get(end)
        if format is not None and weight.dim() == 2:
            parts, values[tensor] = packed(tensor, weight, format)
            stored |= parts
            modules.setdefault(format, []).append(module)
        else:
            stored[tensor], values[tensor] = weight, weight.float()
        if end in case.dense:
            rows = values[tensor][: len(weight) - case.dense[end]]
            q = quantize(rows.numpy(), DENSE, recipe="rceil")
            rows[:] = torch.from_numpy(dequantize(q))
    contiguous = {key: tensor.contiguous() for key, tensor in stored.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            f"group_{number}": {
                "format": DECLARED[format][0],
                "targets": targets,
                "weights": {
                    "num_bits": DECLARED[format][1],
                    "type": "float",
                    "strategy": "tensor_group" if format == "nvfp4" else "group",
                    "group_size": DECLARED[format][2],
                    "symmetric": True,
                    "dynamic": False,
                },
            }
            for number, (format, targets) in enumerate(modules.items())
        },
        "ignore": [],
    }
    (folder / "config.json").write_text(json.dumps(raw))
    return values


@dataclass(frozen=True)
class Oracle:
    """transformers' model of a checkpoint."""

    checkpoint: Path
    config: Any
    values: Tensors

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.config.vocab_size)

    @cached_property
    def model(self) -> Any:
        """In float32."""
        return model_class(self.config).from_pretrained(
            None,
            config=self.config,
            state_dict=self.values,
            dtype=torch.float32,
            attn_implementation="eager",
        )

    def logits(self, tokens: list[int], dtype: torch.dtype) -> NDArray[np.float64]:
        """What follows each token; in float64 the delta rule is float32 all the same."""
        model = self.model
        if dtype == torch.float64:
            model = copy.deepcopy(model).double()
            # torch groups products of float32 and less.
            model.set_experts_implementation("eager")
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), use_cache=False).logits
        return logits[0].double().numpy()


def write_oracle(folder: Path, case: Case) -> Reference:
    """Write the checkpoint of a case, and return its reference."""
    if case.recorded is not None:
        found: Reference = case.recorded(folder)
        return found
    return Oracle(folder, case.config, write(folder, case))


def check_logits(folder: Path, config: Any, tokens: int = 32, **fields: Any) -> None:
    """Logits of a random model in float32 are those of transformers, for a prompt in two pieces.

    fields: fields of config.json that are set after the model is written.
    """
    random_model(config, torch.float32).save_pretrained(folder / "model")
    place = folder / "model" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | fields))
    theirs = model_class(config).from_pretrained(
        folder / "model", dtype=torch.float32, attn_implementation="eager"
    )
    prompt = list(range(1, tokens + 1))
    with torch.no_grad():
        wanted = theirs(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    mxc.compile(
        folder / "model",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        listing=False,
        max_sequence_length=2 * tokens,
    )
    sequence = mxc.load(folder / "model.mxc").sequence()
    found = np.concatenate([sequence.feed(prompt[:5]), sequence.feed(prompt[5:])])
    assert np.abs(found - wanted).max() < 1e-4 * np.sqrt(np.mean(wanted**2))
