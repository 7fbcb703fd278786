"""Write the vectors of AMD Quark: checkpoints that it exports, and what it makes of them again.

    python -m tests.compiler.checkpoints.vectors.write_quark FOLDER

in an environment with amd-quark 0.13 and transformers.

Every linear layer of a tiny model has another data type. `values.safetensors` holds the weights
as Quark itself dequantizes them, float32. Of `dtype: "mx"` there are two: quark-mx is what
version 0.13 exports, in quark-legacy the tensors are as Pack_mxfp4 and Pack_mxfp6 have them, which
is how they were exported before. Of models with experts quark-gpt-oss and others have a
linear layer for each projection of each expert, all in mxfp4.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config import config as specs
from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
from quark.torch.quantization.config.type import Dtype
from quark.torch.utils import create_pack_method
from quark.torch.utils.llm.model_preparation import preprocess_for_quantization
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.compiler.checkpoints.vectors.tiny_experts import CONFIGS, model, shorten, write_values

EXCLUDED = {
    "current": ("down_proj", "gate_proj"),
    "mx": ("down_proj", "gate_proj", "up_proj", "o_proj"),
}
GROUP = {"ch_axis": -1, "is_dynamic": False}


def legacy(element: str) -> QTensorConfig:
    return QTensorConfig(
        dtype=Dtype.mx,
        mx_element_dtype=element,
        ch_axis=-1,
        group_size=32,
        is_dynamic=False,
        scale_calculation_mode="even",
    )


def mx(name: str, recipe: str) -> QTensorConfig:
    spec = getattr(specs, f"OCP_{name}Spec")
    return spec(scale_calculation_mode=recipe, **GROUP).to_quantization_spec()


def layers() -> Iterator[tuple[str, dict[str, QTensorConfig]]]:
    yield (
        "current",
        {
            "self_attn.q_proj": mx("MXFP4", "even"),
            "self_attn.k_proj": mx("MXFP6E2M3", "floor"),
            "self_attn.v_proj": mx("MXFP6E3M2", "ceil"),
            "self_attn.o_proj": mx("MXFP4", "ceil"),
            "mlp.up_proj": specs.FP8E4M3PerTensorSpec(
                observer_method="min_max", is_dynamic=False
            ).to_quantization_spec(),
        },
    )
    yield (
        "mx",
        {
            "self_attn.q_proj": legacy(Dtype.fp4),
            "self_attn.k_proj": legacy(Dtype.fp6_e2m3),
            "self_attn.v_proj": legacy(Dtype.fp6_e3m2),
        },
    )


def main(root: Path) -> None:
    for name, of_layers in layers():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            vocab_size=16,
            max_position_embeddings=64,
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(
                    torch.exp2(
                        torch.randint(-3, 12, parameter.shape[:1] + (1,) * (parameter.ndim - 1))
                    )
                )
            model.model.layers[0].self_attn.q_proj.weight[3] = 0  # a block of zeros
        first = next(iter(of_layers.values()))
        dynamic = specs.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True).to_quantization_spec()
        quantized = QConfig(
            global_quant_config=QLayerConfig(
                weight=first, input_tensors=dynamic if name == "current" else None
            ),
            layer_quant_config={
                f"*{layer}": QLayerConfig(weight=spec) for layer, spec in of_layers.items()
            },
            exclude=["lm_head", "*.down_proj", "*.gate_proj"]
            + (["*.up_proj", "*.o_proj"] if name == "mx" else []),
        )
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        quantizer = ModelQuantizer(quantized)
        model = quantizer.freeze(quantizer.quantize_model(model, [torch.arange(16)[None]]))
        folder = root / f"quark-{name}"
        with torch.no_grad():
            export_safetensors(model, str(folder), weight_format="real_quantized")
        (folder / "generation_config.json").unlink(missing_ok=True)
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")
        save_file(dequantized(folder, of_layers), folder / "values.safetensors")
        if name == "mx":
            write_legacy(folder, root / "quark-legacy", weights, of_layers)


def write_legacy(
    source: Path,
    folder: Path,
    weights: dict[str, torch.Tensor],
    of_layers: dict[str, QTensorConfig],
) -> None:
    """The checkpoint of `source` with each block after its scale."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    values = {}
    for layer, spec in of_layers.items():
        name, element = f"model.layers.0.{layer}", spec.mx_element_dtype.value
        blocks = torch.ops.quark.non_scaled_real_quantize(
            weights[f"{name}.weight"].float(), "mx", element, -1, 32
        )
        method = create_pack_method(None, "mx", element)
        del tensors[f"{name}.weight_scale"]
        tensors[f"{name}.weight"] = method.pack(blocks, True).contiguous()
        pairs = method.unpack(tensors[f"{name}.weight"], True).reshape(-1, 33)
        values[f"{name}.weight"] = (pairs[:, :1] * pairs[:, 1:]).reshape(32, 32).contiguous()
    save_file(tensors, folder / "model.safetensors")
    save_file(values, folder / "values.safetensors")


def dequantized(folder: Path, of_layers: dict[str, QTensorConfig]) -> dict[str, torch.Tensor]:
    """Each weight by Quark's own unpacking and kernels, from the tensors of the file."""
    import quark.torch.kernel  # registers the operations

    stored = load_file(folder / "model.safetensors")
    found = {}
    for layer, spec in of_layers.items():
        name = f"model.layers.0.{layer}"
        scale = stored[f"{name}.weight_scale"]
        weight = stored[f"{name}.weight"]
        if spec.dtype is Dtype.mx:
            # What loading does before it unpacks: torch/export/utils.py.
            method = create_pack_method(None, "mx", spec.mx_element_dtype.value)
            both = torch.cat([scale.reshape(-1, 1), weight.reshape(len(scale), -1)], dim=-1)
            pairs = method.unpack(both, True).reshape(-1, 33)
            found[name + ".weight"] = (pairs[:, :1] * pairs[:, 1:]).reshape(32, 32).contiguous()
            continue
        scheme = spec.qscheme.value
        weight = create_pack_method(scheme, spec.dtype.value).unpack(weight, True)
        if scale.dtype is torch.uint8:
            scale = 2 ** (scale.to(torch.int16) - 127).to(torch.float32)
        found[name + ".weight"] = quark.torch.kernel.dequantize(
            spec.dtype.value,
            weight.to(torch.float32),
            scale.to(torch.float32),
            None,
            spec.ch_axis,
            spec.group_size,
            scheme,
        ).to(torch.float32)
    return found


def experts(root: Path) -> None:
    for name in CONFIGS:
        tiny, folder = model(name), root / f"quark-{name}"
        preprocess_for_quantization(tiny)
        config = QConfig(
            global_quant_config=QLayerConfig(weight=mx("MXFP4", "even")),
            exclude=["lm_head", "*router*", "*.gate"],
        )
        quantizer = ModelQuantizer(config)
        tiny = quantizer.freeze(quantizer.quantize_model(tiny, [torch.arange(16)[None]]))
        with torch.no_grad():
            export_safetensors(tiny, str(folder), weight_format="real_quantized")
        shorten(folder)
        stored = load_file(folder / "model.safetensors")
        modules = [key.removesuffix(".weight_scale") for key in stored if "weight_scale" in key]
        shapes = {module: (len(stored[f"{module}.weight"]), -1) for module in modules}
        found = {}
        for module in modules:
            found[f"{module}.weight"] = mxfp4(stored, module).reshape(shapes[module])
        write_values(folder, name, found)


def mxfp4(stored: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """A weight of a group of 32 by Quark's unpacking and its kernel."""
    import quark.torch.kernel  # registers the operations

    weight = create_pack_method("per_group", "fp4").unpack(stored[f"{module}.weight"], True)
    scale = 2 ** (stored[f"{module}.weight_scale"].to(torch.int16) - 127).float()
    return quark.torch.kernel.dequantize(
        "fp4", weight.float(), scale, None, -1, 32, "per_group"
    ).float()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for old in target.glob("quark-*"):
        shutil.rmtree(old)
    main(target)
    experts(target)
