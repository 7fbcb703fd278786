"""Sorts of torch programs: equal elements in their order, NaN last, bytes without a sign."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mxc

RNG = np.random.default_rng(0)
EQUAL = torch.from_numpy(RNG.integers(0, 4, (3, 40)).astype(np.float32))
BYTES = torch.from_numpy(RNG.permutation(120).astype(np.uint8).reshape(3, 40) * 2)
SPECIAL = torch.tensor([1.0, float("nan"), float("inf"), -2.0, float("nan"), float("-inf"), 0.0])

#: A function and its operand. Its result may be a named tuple.
PROGRAMS: dict[str, tuple[Any, torch.Tensor]] = {
    "stable": (lambda x: torch.sort(x, stable=True), EQUAL),
    "falling": (lambda x: torch.sort(x, stable=True, descending=True), EQUAL),
    "columns": (lambda x: torch.argsort(x, dim=0, stable=True), EQUAL),
    "special": (lambda x: torch.sort(x, stable=True), SPECIAL),
    "special_falling": (lambda x: torch.sort(x, stable=True, descending=True), SPECIAL),
    "bytes": (torch.sort, BYTES),
    "bytes_top": (lambda x: torch.topk(x, 5), BYTES),
    "bytes_least": (lambda x: torch.topk(x, 5, largest=False), BYTES),
    "truth": (lambda x: torch.sort(x > 1, stable=True), EQUAL),
    "greatest": (lambda x: torch.max(x + torch.arange(40) / 64, -1), EQUAL),
}


class Program(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("sorts")
    programs = {
        name: torch.export.export(Program(function), (x,))
        for name, (function, x) in PROGRAMS.items()
    }
    mxc.compile(programs, output=folder / "p.mxc")
    return mxc.load(folder / "p.mxc", threads=1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_torch(model: Any, name: str) -> None:
    function, x = PROGRAMS[name]
    wanted = function(x)
    leaves = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    for found, each in zip(model.call(name, x.numpy()), leaves, strict=True):
        array = each.numpy()
        same = found.view(array.dtype) if found.itemsize == array.itemsize else found
        np.testing.assert_array_equal(same, array)
