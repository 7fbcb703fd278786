"""Columns of a weight as rows of another, in every way that a checkpoint has its scales."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from mxc.compiler.checkpoints.canonical.slices import columns_of
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, blocked, plain
from mxc.compiler.checkpoints.files.safetensors import read_file
from mxc.compiler.models.fused_layers import rows_of
from mxc.formats.formats import FORMATS
from mxc.formats.reference import dequantize, quantize

ROWS, COLUMNS = 64, 96


def stored(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, CanonicalTensor]:
    save_file(tensors, folder / "model.safetensors")
    records = read_file(folder / "model.safetensors")[0]
    return {name: plain(record) for name, record in records.items()}


def numbers(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), dtype=np.float32)


def check(weight: CanonicalTensor, wanted: NDArray[np.float32], format: str) -> None:
    """All of it, and the rows of a head: `wanted` is what the weight means."""
    for part, own in ((weight, wanted), (rows_of(weight, 32, 16), wanted[32:48])):
        turned = columns_of(part)
        assert turned.format == format
        assert turned.shape == own.T.shape
        np.testing.assert_array_equal(turned.values(), own.T)
        np.testing.assert_array_equal(turned.values(8, 16), own.T[8:24])


def test_plain(tmp_path: Path) -> None:
    values = torch.from_numpy(numbers(0)).bfloat16()
    found = stored(tmp_path, {"weight": values})["weight"]
    check(found, values.float().numpy(), "bf16")


def test_fp8_in_squares(tmp_path: Path) -> None:
    """The squares are turned too, and stay in their format."""
    elements = torch.from_numpy(numbers(0)).to(torch.float8_e4m3fn)
    scales = torch.from_numpy(numbers(1)[: ROWS // 16, : COLUMNS // 32].copy())
    parts = stored(tmp_path, {"weight": elements, "scales": scales})
    weight = replace(parts["weight"], scales=parts["scales"].elements, block=(16, 32))
    wide = scales.repeat_interleave(16, 0).repeat_interleave(32, 1)
    check(weight, (elements.float() * wide).numpy(), "f8_e4m3")
    assert columns_of(weight).block == (32, 16)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6e2m3", "mxfp8e4m3", "mxint8"])
def test_blocks_along_the_rows(name: str, tmp_path: Path) -> None:
    """Their numbers, which have at most eight digits: exact in bf16."""
    q = quantize(numbers(2), name, recipe="even" if name != "mxint8" else "floor")
    parts = {"e": torch.from_numpy(q.elements.copy()), "s": torch.from_numpy(q.scales.copy())}
    records = {key: part.elements.record for key, part in stored(tmp_path, parts).items()}
    weight = blocked("w", (ROWS, COLUMNS), FORMATS[name], records["e"], records["s"])
    check(weight, dequantize(q), "bf16")
