"""Experts of a layer in one tensor are quantized, whichever way they lie, and never kept silently.

The values are those that the reference makes of each expert's matrix [out, in].
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.inspect.compare import compare
from mxc.compiler.models.model import open_model
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import CheckpointError
from mxc.formats.reference import dequantize, quantize

EXPERTS, HIDDEN, WIDTH = 3, 64, 96
STEM = "model.layers.0.mlp.experts"


def stacks(folder: Path, config: dict[str, object], *, turned: bool) -> dict[str, torch.Tensor]:
    """A checkpoint of two stacks; what they hold as [E, out, in]."""
    torch.manual_seed(0)
    found = {
        "gate_up_proj": torch.randn(EXPERTS, 2 * WIDTH, HIDDEN),
        "down_proj": torch.randn(EXPERTS, HIDDEN, WIDTH),
    }
    stored = {f"{STEM}.{name}": (t.mT if turned else t).contiguous() for name, t in found.items()}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return found


@pytest.mark.parametrize("dialect", ["quark", "compressed-tensors", "torchao"])
@pytest.mark.parametrize("turned", [False, True])
def test_each_expert_is_the_reference(tmp_path: Path, dialect: str, turned: bool) -> None:
    """Experts of an architecture that mxc does not know: the sizes of both projections tell the
    axis."""
    held = stacks(tmp_path / "in", {"model_type": "other"}, turned=turned)
    result = quantize_checkpoint(
        tmp_path / "in", tmp_path / "out", "mxfp4", recipe="even", dialect=dialect
    )
    assert all(item.parts is not None for item in result.items)
    found = open_checkpoint(tmp_path / "out")
    gate, up = held["gate_up_proj"].chunk(2, dim=1)
    for name, stack in (("gate", gate), ("up", up), ("down", held["down_proj"])):
        for number, weight in enumerate(stack):
            values = found.tensor(f"{STEM}.{number}.{name}_proj.weight").values()
            wanted = quantize(weight.contiguous().numpy(), "mxfp4", recipe="even")
            np.testing.assert_array_equal(values, dequantize(wanted))


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "mxfp8e4m3"])
def test_gpt_oss_in_full_precision(tmp_path: Path, format: str) -> None:
    """Its experts are [in, out] with gate and up in turn; what comes out is a model."""
    write_gpt_oss(tmp_path / "shape", GptOssOptions(num_hidden_layers=1, hidden_size=96))
    config = transformers.GptOssConfig.from_pretrained(tmp_path / "shape")
    del config.quantization_config
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    for name, weight in model.named_parameters():
        if "bias" in name:
            weight.data = torch.randn_like(weight)
    model.save_pretrained(tmp_path / "plain")
    quantize_checkpoint(tmp_path / "plain", tmp_path / "out", format)
    formats = {each.key: each.format for each in open_model(tmp_path / "out").bound}
    assert formats[f"{STEM}.gate_up_proj"] == formats[f"{STEM}.down_proj"] == format
    rows = compare(open_checkpoint(tmp_path / "plain"), open_checkpoint(tmp_path / "out"))
    assert not rows["only_in_first"] + rows["only_in_second"]
    for row in rows["tensors"]:
        exact = row["formats"][0] == row["formats"][1]
        assert (row["result"] == "same bytes") == exact
        # The step of fp4 is a quarter of the largest element or less.
        assert exact or row["largest_difference"] < 0.02


def test_all_dialects_hold_the_same_gpt_oss(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "shape", GptOssOptions(num_hidden_layers=1, hidden_size=96))
    config = transformers.GptOssConfig.from_pretrained(tmp_path / "shape")
    del config.quantization_config
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    places = {d: d for d in ("gpt-oss", "quark", "compressed-tensors", "torchao")} | {
        "gguf": "m.gguf"
    }
    for dialect, place in places.items():
        quantize_checkpoint(
            tmp_path / "plain",
            tmp_path / place,
            "mxfp4",
            recipe="even",
            ties="even",
            dialect=dialect,
            include=[r"re:.*experts\.\w+_proj$"],
        )
    first = open_checkpoint(tmp_path / "gpt-oss")
    for place in places.values():
        found = compare(first, open_checkpoint(tmp_path / place))
        assert found["result"] != "different", (place, found)


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"x.experts.down_proj": (2, 64, 64)}, {"model_type": "other"}, "neither the architecture"),
        ({"x.experts.gate_proj": (2, 32, 64)}, {"model_type": "other"}, "neither the architecture"),
        (
            {"x.experts.gate_up_proj": (2, 192, 64), "x.experts.down_proj": (2, 64, 96)},
            {},
            "without a model_type in config.json",
        ),
        (
            {"x.moe.input_linear.weight": (2, 32, 64)},
            {"model_type": "other"},
            "a stack of matrices",
        ),
    ],
)
def test_stacks_that_are_refused(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], config: dict[str, str], message: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    save_file(
        {name: torch.ones(shape) for name, shape in tensors.items()}
        | {"a.weight": torch.ones(32, 32)},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        quantize_checkpoint(folder, tmp_path / "out", "mxfp4")
    quantize_checkpoint(folder, tmp_path / "out", "mxfp4", exclude=["x.*"])
    assert load_file(tmp_path / "out" / "model.safetensors").keys() >= set(tensors)


def test_sizes_of_the_config_tell_where_projections_are_apart(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    weight = torch.randn(2, 64, 32)  # [E, in, out]
    save_file({"x.experts.up_proj": weight}, folder / "model.safetensors")
    text = {"model_type": "other", "text_config": {"hidden_size": 64}}
    (folder / "config.json").write_text(json.dumps(text))
    quantize_checkpoint(folder, tmp_path / "out", "mxfp8e4m3", recipe="even")
    found = open_checkpoint(tmp_path / "out").tensor("x.experts.1.up_proj.weight")
    wanted = quantize(weight[1].T.contiguous().numpy(), "mxfp8e4m3", recipe="even")
    np.testing.assert_array_equal(found.values(), dequantize(wanted))
