"""Write the vectors of NVIDIA's Model Optimizer: what it exports, and what it makes of it again.

    python -m tests.compiler.checkpoints.vectors.write_modelopt FOLDER

in an environment with nvidia-modelopt 0.47, transformers.

`values.safetensors` holds the weights as modelopt itself dequantizes them, float32.
"""

import copy
import json
import shutil
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.compiler.checkpoints.vectors.tiny_experts import model, shorten, write_values

CONFIGS = {
    "nvfp4": mtq.NVFP4_DEFAULT_CFG,
    "mxfp4": mtq.W4A8_MXFP4_FP8_CFG,
    "mxfp8": mtq.MXFP8_DEFAULT_CFG,
    "fp8": mtq.FP8_DEFAULT_CFG,
}


def main(root: Path) -> None:
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=1,
                num_key_value_heads=1,
                vocab_size=16,
                max_position_embeddings=64,
                architectures=["LlamaForCausalLM"],
            )
        )
        model = model.to(torch.bfloat16).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(torch.exp2(torch.randint(-3, 3, (len(parameter), 1))))
        ids = torch.arange(16)[None]
        model = mtq.quantize(model, copy.deepcopy(config), lambda m, ids=ids: m(ids))
        folder = root / f"modelopt-{name}"
        with torch.no_grad():
            export_hf_checkpoint(model, export_dir=folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        for file in ("config.json", "hf_quant_config.json"):
            raw = json.loads((folder / file).read_text())
            (folder / file).write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")
        keep(folder)
        save_file(dequantized(folder, name), folder / "values.safetensors")


def keep(folder: Path) -> None:
    """Two layers are enough."""
    stored = load_file(folder / "model.safetensors")
    few = {k: v for k, v in stored.items() if ".up_proj" not in k and ".down" not in k}
    save_file(
        {
            k: v.contiguous()
            for k, v in few.items()
            if "_proj" not in k or ".q_" in k or ".gate_" in k
        },
        folder / "model.safetensors",
    )


def dequantized(folder: Path, name: str) -> dict[str, torch.Tensor]:
    stored = load_file(folder / "model.safetensors")
    found = {}
    for key in [k for k in stored if k.endswith(".weight_scale")]:
        module = key.removesuffix(".weight_scale")
        weight, scale = stored[f"{module}.weight"], stored[key]
        shape = torch.Size([32, 32])
        if name == "nvfp4":
            q = NVFP4QTensor(shape, torch.float32, weight)
            second = stored[f"{module}.weight_scale_2"]
            value = q.dequantize(scale=scale, double_scale=second, block_sizes={-1: 16})
        elif name == "mxfp4":
            q = MXFP4QTensor(shape, torch.float32, weight)
            value = q.dequantize(scale=scale, block_sizes={-1: 32})
        elif name == "mxfp8":
            q = MXFP8QTensor(shape, torch.float32, weight)
            value = q.dequantize(scale=scale, block_sizes={-1: 32})
        else:
            value = weight.to(torch.float32) * scale
        found[f"{module}.weight"] = value.to(torch.float32).contiguous()
    return found


def experts(root: Path) -> None:
    """The experts of gpt-oss, which are quantized along their inputs and stored turned."""
    folder, ids = root / "modelopt-gpt-oss", torch.arange(16)[None]
    tiny = mtq.quantize(model("gpt-oss"), copy.deepcopy(CONFIGS["nvfp4"]), lambda m: m(ids))
    with torch.no_grad():
        export_hf_checkpoint(tiny, export_dir=folder)
    shorten(folder)
    stored = load_file(folder / "model.safetensors")
    found = {}
    for key in [key for key in stored if key.endswith("weight_scale")]:
        # Of experts as of modules: X_weight_scale beside X, X.weight_scale beside X.weight.
        turned = "experts." in key
        name = key.removesuffix("_weight_scale" if turned else "_scale")
        elements, scale, second = stored[name], stored[key], stored[f"{key}_2"]
        if turned:
            elements, scale = elements.mT.contiguous(), scale.mT.contiguous()
        shape = torch.Size([*elements.shape[:-1], 2 * elements.shape[-1]])
        q = NVFP4QTensor(shape, torch.float32, elements)
        value = q.dequantize(scale=scale, double_scale=second, block_sizes={-1: 16})
        found[name] = (value.mT if turned else value).contiguous()
    write_values(folder, "gpt-oss", found)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for old in target.glob("modelopt-*"):
        shutil.rmtree(old)
    main(target)
    experts(target)
