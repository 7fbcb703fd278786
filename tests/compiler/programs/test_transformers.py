"""Models of transformers with a dynamic batch and length: the numbers are those of torch."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

import mxc

SIZES = {"vocab_size": 50, "num_hidden_layers": 1, "num_attention_heads": 4,
         "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
WIDE = {**SIZES, "hidden_size": 32, "intermediate_size": 48}
#: Masks from ranges, slices of position tables, heads split and merged, images, decoders.
MODELS: dict[str, dict[str, Any]] = {
    "bert": WIDE,
    "llama": {**WIDE, "num_key_value_heads": 2},
    "opt": {**SIZES, "hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 1, "n_head": 4},
    "vit": {**WIDE, "image_size": 32, "patch_size": 8},
    "t5": {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4},
}


class Outputs(torch.nn.Module):
    """A model of transformers, from arrays to its hidden states."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Any) -> Any:
        return self.model(**dict(zip(self.names, given, strict=True)), use_cache=False)[0]


def given(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(1, 50, (batch, length), generator=generator)
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=generator)}
    if name == "t5":
        return {"input_ids": ids, "decoder_input_ids": ids[:, 1:4].contiguous()}
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def make_module(name: str, names: list[str]) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **MODELS[name])
    config._attn_implementation = "eager"
    return Outputs(AutoModel.from_config(config), names).eval()


def axes_of(given: dict[str, torch.Tensor]) -> dict[str, dict[int, str]]:
    """The names of dynamic sizes; a decoder's length is one of its own."""
    return {
        name: {0: "batch"}
        if name == "pixel_values"
        else {0: "batch", 1: "answer" if "decoder" in name else "length"}
        for name in given
    }


def check(module: torch.nn.Module, file: Path, *calls: dict[str, torch.Tensor]) -> None:
    made = mxc.compile(file, output=file.with_suffix(".mxc"), listing=False)
    model = mxc.load(made.path)
    for inputs in calls:
        with torch.no_grad():
            wanted = module(*inputs.values()).numpy()
        (found,) = model.call("main", *(each.numpy() for each in inputs.values()))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_traced_to_onnx(name: str, tmp_path: Path) -> None:
    first, second = given(name, 2, 7), given(name, 3, 12)
    module, file = make_module(name, [*first]), tmp_path / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(first.values()), file, dynamo=False, opset_version=17,
                          input_names=[*first], dynamic_axes=axes_of(first))  # fmt: skip
    check(module, file, first, second)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_a_file_of_torch(name: str, tmp_path: Path) -> None:
    first, second = given(name, 2, 7), given(name, 3, 12)
    module, file = make_module(name, [*first]), tmp_path / "model.pt2"
    dynamic = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in axes_of(first).values()]
    program = torch.export.export(module, tuple(first.values()), dynamic_shapes=(tuple(dynamic),))
    torch.export.save(program, file)
    check(module, file, first, second)
