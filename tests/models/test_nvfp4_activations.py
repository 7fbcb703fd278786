"""`--activations nvfp4`: what meets weights in nvfp4 is quantized too, with a scale for each row.

The reference is transformers' float32 model in which the rows that meet such weights are what
ml_dtypes' roundings make of them. A float32 program differs from another in its last bits, which
decide a tie now and then: nearly all texts of one token agree, none where nothing is quantized.
"""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT
from mxc.errors import CheckpointError
from tests.models.published_checkpoints import PUBLISHED
from tests.models.published_configs import VOCABULARY
from tests.models.published_files import reference_model, write_published

TOLERANCE = 2e-5
TOKENS = range(0, VOCABULARY - 9, 5)
#: Parts of the names of what is not in nvfp4.
PLAIN = ("lm_head", "embed_tokens", "mlp.gate.")


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows of nvfp4, as numbers; each has the scale that torchao gives a tensor."""
    rows = x.detach().numpy()
    blocks = rows.reshape(*rows.shape[:-1], -1, 16)
    whole = np.maximum(np.abs(rows).max(-1) / np.float32(2688), np.float32(2.0**-120))
    whole = whole[..., None]
    peak = np.abs(blocks).max(axis=-1) / np.float32(6)
    scales = np.clip(peak / whole, np.float32(2.0**-6), np.float32(448))
    scales = scales.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = np.clip(blocks * (np.float32(1) / whole / scales)[..., None], -6, 6)
    codes = codes.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return torch.from_numpy((codes * (scales * whole)[..., None]).reshape(rows.shape))


@contextmanager
def quantized(module: torch.nn.Module) -> Iterator[None]:
    """What meets weights in nvfp4 is rounded, experts' too."""
    own = {
        weight.untyped_storage().data_ptr()
        for name, weight in module.named_parameters()
        if weight.dim() > 1 and not any(part in name for part in PLAIN)
    }
    linear = torch.nn.functional.linear

    def change(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor | None) -> torch.Tensor:
        return linear(
            rounded(x) if weight.untyped_storage().data_ptr() in own else x, weight, *bias
        )

    torch.nn.functional.linear = change
    try:
        yield
    finally:
        torch.nn.functional.linear = linear


def agreeing(found: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    """The share of texts with the same logits up to float32."""
    size = float(np.sqrt(np.mean(wanted**2)))
    return float(np.mean(np.abs(found - wanted).max(axis=-1) <= TOLERANCE * size))


@pytest.mark.parametrize("name", ["redhat-llama-nvfp4", "nvidia-qwen3-moe-nvfp4"])
def test_rows_are_quantized_where_they_meet_nvfp4(name: str, tmp_path: Path) -> None:
    # What is plain is f32, and so are the head's activations and the cache.
    write_published(tmp_path, dataclasses.replace(PUBLISHED[name], dtype=torch.float32))
    artifact = mxc.compile(
        tmp_path / "checkpoint", "cpu", tmp_path / "model.mxc", activations="nvfp4",
        max_sequence_length=8, strict=True,
    )  # fmt: skip
    assert any("nvfp4, in blocks of 16 and with a float32 scale for" in note
               for note in artifact.manifest.notes)  # fmt: skip
    assert any("mxc has a kernel for it on GPUs alone" in note for note in artifact.manifest.notes)
    assert any("each row has one of its own" in note for note in artifact.manifest.notes)
    products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
    packed = [each for each in products if each["rhs"] == "nvfp4"]
    assert {each["lhs"] for each in packed} == {"nvfp4"}
    assert all(each["fallback"] is None and "mxc_" in each["kernel"] for each in packed)
    # Quantizing is counted.
    assert all(each["kernels"] > 1 for each in packed)
    sequence, rows = mxc.load(tmp_path / "model.mxc").sequence(), []
    for token in TOKENS:
        sequence.reset()
        rows.append(sequence.feed([token])[0])
    found = np.stack(rows)
    reference = reference_model(tmp_path, torch.float32)

    def logits() -> NDArray[np.float64]:
        texts = torch.tensor([[token] for token in TOKENS])
        with torch.no_grad():
            return reference(input_ids=texts, use_cache=False).logits[:, 0].double().numpy()

    with quantized(reference):
        assert agreeing(found, logits()) >= 0.8
    assert agreeing(found, logits()) == 0


def static(x: torch.Tensor, calibrated: float) -> torch.Tensor:
    """Rows of nvfp4 by compressed-tensors, under the global scale of a calibrated magnitude."""
    most = torch.tensor([calibrated])
    whole = generate_gparam(-most, most).float()
    peak = x.reshape(len(x), -1, 16).abs().amax(-1)
    arguments = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic="local",
        scale_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    scales, zeros = calculate_qparams(-peak, peak, arguments, global_scale=whole)
    return fake_quantize(x, scales, zeros, arguments, global_scale=whole)


def test_a_scale_of_each_row_loses_no_more_than_a_static_one() -> None:
    """That is why static scales of a checkpoint are not read: docs/numerics.md."""
    torch.manual_seed(0)
    rows = torch.randn(64, 512)
    uneven = rows * torch.exp(1.5 * torch.randn(64, 1)) * torch.exp(torch.randn(64, 512))

    def decibels(x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return 10 * torch.log10((x**2).sum(-1) / ((x - found) ** 2).sum(-1))

    for x in (rows, uneven):
        own = decibels(x, rounded(x))
        for times in (1, 8, 100):
            gained = own - decibels(x, static(x, float(x.abs().max()) * times))
            assert gained.mean() >= -0.2
        # Of a token above what was calibrated a static scale cuts off the largest.
        largest = x.abs().amax(-1).argmax()
        cut = decibels(x, static(x, float(x.abs().max()) / 2))
        assert own[largest] - cut[largest] >= 2


def test_gfx950_computes_what_a_cpu_does(tmp_path: Path) -> None:
    """With --strict, and a cache in bf16, on the simulator."""
    write_published(tmp_path, PUBLISHED["redhat-llama-nvfp4"])
    found = []
    for target, device in (("cpu", None), ("gfx950", "simulator")):
        artifact = mxc.compile(
            tmp_path / "checkpoint", target, tmp_path / f"{target}.mxc", activations="nvfp4",
            max_sequence_length=4, strict=True,
        )  # fmt: skip
        sequence = mxc.load(artifact.path, device=device).sequence()
        found.append(np.concatenate([sequence.feed([token]) for token in (5, 17)]))
    on_cpu, on_gpu = found
    assert np.abs(on_gpu - on_cpu).max() <= TOLERANCE * np.sqrt(np.mean(on_cpu**2))


def test_weights_in_other_blocks_are_refused(tmp_path: Path) -> None:
    write_published(tmp_path, PUBLISHED["amd-llama-mxfp4"])
    with pytest.raises(CheckpointError, match=r"--activations nvfp4: wanted weights in nvfp4"):
        mxc.compile(
            tmp_path / "checkpoint", "cpu", tmp_path / "model.mxc", activations="nvfp4",
            weights="none",
        )  # fmt: skip
