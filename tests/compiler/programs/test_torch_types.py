"""Bytes, truth values and narrow floats of torch programs: the numbers of torch."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

import mxc

GENERATOR = torch.Generator().manual_seed(0)
BYTES, MORE = torch.randint(1, 256, (2, 40), generator=GENERATOR, dtype=torch.uint8)
TRUTH, OTHER = torch.rand(2, 40, generator=GENERATOR) > 0.5
ROWS = torch.rand(3, 4096, generator=GENERATOR)

#: Operations on two operands.
BOTH: dict[str, Any] = {
    name: getattr(torch, name)
    for name in ("minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne", "mul", "add")
} | {"clamp_min": torch.clamp_min, "clamp_max": torch.clamp_max}
ONLY_BYTES: dict[str, Any] = {
    "divide": torch.div,
    "divide by a number": lambda x, y: x / 3,
    "floor": lambda x, y: x // y,
    "floor of a number": lambda x, y: x // 3,
    "rest": lambda x, y: torch.remainder(x, y),
    "rest toward zero": lambda x, y: torch.fmod(x, y),
    "rounded quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "difference": lambda x, y: x - y,
    "from a number": lambda x, y: 100 - x,
    "clamped": lambda x, y: x.clamp(10, 200),
    "absolute": lambda x, y: torch.abs(x),
    "sum": lambda x, y: x.sum(),
    "sum of rows": lambda x, y: x.reshape(4, 10).sum(1),
    "running sum": lambda x, y: x.cumsum(0),
    "largest": lambda x, y: x.max(),
    "least of a row": lambda x, y: x.amin(0),
    "place": lambda x, y: x.argmax(),
    "shifted": lambda x, y: x >> 3,
    "with integers": lambda x, y: x + y.int(),
    "root": lambda x, y: torch.sqrt(x),
}
#: Places of truth values, some of which are there more than once.
PLACES = torch.randint(0, 40, (40,), generator=torch.Generator().manual_seed(1))
ONLY_TRUTH: dict[str, Any] = {
    "scattered": lambda x, y: x.scatter_add(0, PLACES, y),
    "scattered largest": lambda x, y: x.scatter_reduce(0, PLACES, y, "amax"),
    "scattered least": lambda x, y: x.scatter_reduce(0, PLACES, y, "amin"),
    "scattered sum": lambda x, y: x.scatter_reduce(0, PLACES, y, "sum"),
}
#: Operations on rows of bf16 and f16, for which torch adds many numbers in f32.
SUMS: dict[str, Any] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "running sum": lambda x: x.cumsum(1),
    "running product": lambda x: (x[:, :64] / 64 + 1).cumprod(1),
    "product": lambda x: (x[:, :64] / 64 + 1).prod(1),
    "layer norm": lambda x: functional.layer_norm(x, (4096,)),
    "group norm": lambda x: functional.group_norm(x[None], 3),
    "pooling": lambda x: functional.avg_pool1d(x[None], 64),
    "log softmax": lambda x: functional.log_softmax(x, 1),
    "scattered": lambda x: torch.zeros(3, 2, dtype=x.dtype).scatter_add(
        1, (torch.arange(4096) % 2).expand(3, -1), x
    ),
    "added at places": lambda x: torch.zeros(2, 4096, dtype=x.dtype).index_add(
        0, torch.tensor([0, 0, 1]), x
    ),
}
KINDS = {"bf16": torch.bfloat16, "f16": torch.float16}


class Program(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    **{f"{name} of bytes": (each, (BYTES, MORE)) for name, each in (BOTH | ONLY_BYTES).items()},
    **{f"{name} of truth": (each, (TRUTH, OTHER)) for name, each in BOTH.items()},
    **{f"{name} of truth": (each, (TRUTH, OTHER)) for name, each in ONLY_TRUTH.items()},
    "scattered mean of integers": (
        lambda x, y: x.scatter_reduce(0, PLACES, y, "mean"),
        (BYTES.int() - 99, MORE.int() - 99),
    ),
    "scattered mean of others": (
        lambda x, y: x.scatter_reduce(0, PLACES, y, "mean", include_self=False),
        (BYTES.int() - 99, MORE.int() - 99),
    ),
    "rolled": (lambda x: x.roll(7), (BYTES,)),
    "rolled by axes": (lambda x: x.reshape(4, 10).roll((1, -13), (0, 1)), (BYTES,)),
    "rolled nowhere": (lambda x: x.reshape(4, 10).roll(4, 0), (BYTES,)),
    "filled": (lambda x: torch.full((40,), 4, dtype=torch.bool) & x, (TRUTH,)),
}
NARROW = {
    f"{name} of {kind}": (each, (ROWS.to(type),))
    for name, each in SUMS.items()
    for kind, type in KINDS.items()
}
EVERY = CASES | NARROW
NAMES = {name: f"f{number}" for number, name in enumerate(EVERY)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("types")
    programs = {
        NAMES[name]: torch.export.export(Program(function), given)
        for name, (function, given) in EVERY.items()
    }
    mxc.compile(programs, output=folder / "p.mxc")
    return mxc.load(folder / "p.mxc", threads=1)


def array(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_truth_values(model: Any, name: str) -> None:
    function, given = CASES[name]
    wanted = array(function(*given))
    (found,) = model.call(NAMES[name], *map(array, given))
    if found.dtype != wanted.dtype and found.itemsize == wanted.itemsize:
        found = found.view(wanted.dtype)  # bytes have no sign at the boundary
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", NARROW)
def test_sums_of_narrow_floats(model: Any, name: str) -> None:
    """Twice the error of torch, or one unit in the last place of a number of the size of 1."""
    function, (x,) = NARROW[name]
    exact = function(x.double()).numpy()
    torch_error = np.abs(array(function(x)).astype(np.float64) - exact).max()
    (found,) = model.call(NAMES[name], array(x))
    error = np.abs(found.astype(np.float64) - exact).max()
    assert error <= max(2 * torch_error, 2.0**-8 if x.dtype == torch.bfloat16 else 2.0**-11)
