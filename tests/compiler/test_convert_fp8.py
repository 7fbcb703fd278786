"""fp8 with float scales, and nvfp4 with either convention, from dialect to dialect: same values.

compressed-tensors decompresses what is written to the values of the source.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.inspect.compare import compare
from mxc.errors import CheckpointError

VECTORS = Path(__file__).parent / "checkpoints" / "vectors"
LAYER = "model.layers.0.mlp.down_proj"
ROWS, COLUMNS = 160, 320

#: Arguments of compressed-tensors and shapes of scales, a strategy each.
STRATEGIES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tensor": ({"strategy": "tensor"}, (1,)),
    "channel": ({"strategy": "channel"}, (ROWS, 1)),
    "group": ({"strategy": "group", "group_size": 64}, (ROWS, 5)),
    "block": ({"strategy": "block", "block_structure": [128, 128]}, (2, 3)),
}


def write(folder: Path, strategy: str, scales: torch.dtype, static: bool) -> Path:
    """A layer of fp8 in the dialect of compressed-tensors."""
    arguments, shape = STRATEGIES[strategy]
    torch.manual_seed(3)
    tensors = {
        f"{LAYER}.weight": torch.randn(ROWS, COLUMNS).to(torch.float8_e4m3fn),
        f"{LAYER}.weight_scale": (torch.rand(shape) / 100).to(scales),
        "lm_head.weight": torch.randn(8, 8).bfloat16(),
    }
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    inputs = None
    if static:
        tensors[f"{LAYER}.input_scale"] = torch.tensor([0.017])
        inputs = {**common, "strategy": "tensor", "dynamic": False}
    group = {"targets": ["Linear"], "weights": {**common, **arguments}, "input_activations": inputs}
    declared = {"quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"group_0": group}, "ignore": ["lm_head"]}  # fmt: skip
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": declared}))
    return folder


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compressed_tensors_reads_what_is_written(
    tmp_path: Path, strategy: str, scales: torch.dtype, static: bool
) -> None:
    source = write(tmp_path / "in", strategy, scales, static)
    convert(source, "compressed-tensors", tmp_path / "out")
    first, second = open_checkpoint(source), open_checkpoint(tmp_path / "out")
    assert compare(first, second)["result"] == "same bytes"
    assert first.quantization.activations(LAYER) == second.quantization.activations(LAYER)
    raw = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme.model_validate(raw["config_groups"]["group_0"])
    state = {
        name.removeprefix(f"{LAYER}."): tensor
        for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items()
        if name.startswith(LAYER) and not name.endswith("input_scale")
    }
    compressor = BaseCompressor.get_value_from_registry(raw["format"])
    state["weight_scale"] = state["weight_scale"].float()
    found = compressor.decompress(state, scheme)["weight"].float().numpy()
    assert np.array_equal(found, first.tensor(f"{LAYER}.weight").values())


@pytest.mark.parametrize(
    ("strategy", "static", "to", "refused"),
    [
        ("tensor", True, "modelopt", None),
        ("tensor", False, "modelopt", "static scales of inputs"),
        ("channel", False, "modelopt", None),
        ("channel", True, "modelopt", "a scale a channel and none"),
        ("tensor", True, "quark", None),
        ("channel", True, "quark", None),
        ("channel", False, "quark", None),
        ("block", False, "quark", "of fp8 it has scales a tensor, channel; this one's a block"),
        ("group", False, "modelopt", "this one's a group"),
        ("tensor", False, "torchao", "it has no fp8 with float scales"),
    ],
)
def test_there_and_back(
    tmp_path: Path, strategy: str, static: bool, to: str, refused: str | None
) -> None:
    source = write(tmp_path / "in", strategy, torch.float32, static)
    if refused is not None:
        with pytest.raises(CheckpointError, match=f"{LAYER}.weight is f8_e4m3 .*{refused}"):
            convert(source, to, tmp_path / "there")
        return
    convert(source, to, tmp_path / "there")
    convert(tmp_path / "there", "compressed-tensors", tmp_path / "back")
    sources = [open_checkpoint(tmp_path / name) for name in ("in", "there", "back")]
    assert compare(sources[0], sources[1])["result"] == "same bytes"
    stored = [load_file(tmp_path / name / "model.safetensors") for name in ("in", "back")]
    assert stored[0].keys() == stored[1].keys()
    for name, tensor in stored[0].items():
        assert torch.equal(tensor.view(torch.uint8), stored[1][name].view(torch.uint8))
    said = [each.quantization.activations(LAYER) for each in sources]
    if static:
        assert said == [ActivationFormat(format="f8_e4m3", dynamic=False)] * 3


def test_what_modelopt_and_quark_wrote(tmp_path: Path) -> None:
    for vectors, to in (
        ("modelopt-fp8", "compressed-tensors"),
        ("modelopt-fp8", "quark"),
        ("quark-current", "quark"),
    ):
        out = tmp_path / f"{vectors}-{to}"
        convert(VECTORS / vectors, to, out)
        found = compare(open_checkpoint(VECTORS / vectors), open_checkpoint(out))
        assert found["result"] == "same bytes", found


def nvfp4(folder: Path, factor: float) -> Path:
    """A layer of nvfp4 in the dialect of modelopt, all scales among its blocks."""
    scales = torch.arange(1, 127, dtype=torch.uint8).repeat(64)[: ROWS * 20].reshape(ROWS, 20)
    tensors = {
        f"{LAYER}.weight": torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8),
        f"{LAYER}.weight_scale": scales.view(torch.float8_e4m3fn),
        f"{LAYER}.weight_scale_2": torch.tensor(factor),
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    declared = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": []}
    (folder / "config.json").write_text(json.dumps({"quantization_config": declared}))
    return folder


def test_tensor_scales_without_an_exact_reciprocal(tmp_path: Path) -> None:
    """Only those of many factors are accepted whose scales come out the same."""
    random = np.random.default_rng(5)
    refused = []
    for number, factor in enumerate(random.uniform(1e-4, 1e-2, 60).astype(np.float32)):
        source = nvfp4(tmp_path / f"in-{number}", float(factor))
        try:
            convert(source, "compressed-tensors", tmp_path / f"out-{number}")
        except CheckpointError as error:
            refused.append(str(error))
            continue
        found = compare(open_checkpoint(source), open_checkpoint(tmp_path / f"out-{number}"))
        assert found["result"] == "same values"
    assert all("values change by up to" in each for each in refused)
    assert 0 < len(refused) < 60


def test_mixed_precision_of_modelopt(tmp_path: Path) -> None:
    """fp8 and nvfp4 in one checkpoint, named layer by layer."""
    source = write(tmp_path / "in", "tensor", torch.float32, True)
    second = nvfp4(tmp_path / "second", 2.0**-9)
    tensors = load_file(source / "model.safetensors")
    other = "model.layers.0.mlp.up_proj"
    for name, tensor in load_file(second / "model.safetensors").items():
        part = name.removeprefix(f"{LAYER}.")
        new = {"weight": "weight_packed", "weight_scale_2": "weight_global_scale"}.get(part, part)
        tensors[f"{other}.{new}"] = 1 / tensor.reshape(1) if "global" in new else tensor
    save_file(tensors, source / "model.safetensors")
    raw = json.loads((source / "config.json").read_text())
    declared = raw["quantization_config"]
    declared["format"] = "mixed-precision"
    declared["config_groups"]["group_0"]["targets"] = [LAYER]
    declared["config_groups"]["group_1"] = {
        "targets": [other],
        "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                    "symmetric": True},
    }  # fmt: skip
    (source / "config.json").write_text(json.dumps(raw))
    for to in ("modelopt", "compressed-tensors"):
        convert(source, to, tmp_path / to)
        found = compare(open_checkpoint(source), open_checkpoint(tmp_path / to))
        assert found["result"] in ("same bytes", "same values"), found
    said = json.loads((tmp_path / "modelopt" / "hf_quant_config.json").read_text())["quantization"]
    assert said["quant_algo"] == "MIXED_PRECISION"
    assert said["quantized_layers"] == {
        LAYER: {"quant_algo": "FP8"},
        other: {"quant_algo": "W4A16_NVFP4"},
    }
