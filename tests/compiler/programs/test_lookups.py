"""Elements that are looked up in slices of tensors, on a CPU and on the simulator: torch's."""

import functools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

import mxc
from mxc.runtime.session import Model

RANDOM = np.random.default_rng(0)
TABLE = torch.tensor(RANDOM.standard_normal((50, 24)), dtype=torch.float32)


def scattered(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """As a router does: the shares of the chosen among all."""
    shares, chosen = torch.topk(x, 3, -1)
    return torch.zeros_like(x).scatter(1, chosen, shares.softmax(-1))


#: Functions of x [T, 16] and of numbers [T, 16] below 16.
FORMS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "an_element_of_each_row": lambda x, n: torch.gather(x[:, 2:6], 1, n[:, :3] % 4),
    "rows_of_columns": lambda x, n: x[:, 1:5][n[:, 0] % 3],
    "columns_of_a_weight": lambda x, n: TABLE[:, 4:20][n[:, 0]],
    "every_other_column": lambda x, n: x[:, 3::2][n[:, 0] % 3],
    "a_slice_of_a_slice": lambda x, n: x[:, 2:14][:, 1:9][:, ::2][n[:, 0] % 3],
    "without_a_dimension": lambda x, n: x.view(-1, 2, 8)[:, 1][n[:, 0] % 3],
    "two_numbers": lambda x, n: x.view(-1, 2, 8)[:, :, 1:7][n[:, 0] % 3, n[:, 1] % 2],
    "transposed": lambda x, n: x[:, 2:10].t()[n[:3, 0] % 8],
    "permuted": lambda x, n: x.view(-1, 4, 4)[:, 1:3].permute(2, 1, 0)[n[:3, 0] % 4].contiguous(),
    "a_router": scattered,
}


class Form(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return FORMS[self.name](x, numbers)


def given(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = np.stack([RANDOM.permutation(16) for _ in range(rows)])
    x = RANDOM.standard_normal((rows, 16)).astype(np.float32)
    return torch.tensor(x), torch.tensor(numbers)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """All forms for a target, with a number of rows that comes with the call, and with seven."""

    @functools.cache
    def make(target: str) -> Model:
        size = {0: torch.export.Dim("t", min=4, max=4096)}
        programs: dict[str, torch.export.ExportedProgram] = {}
        for name in FORMS:
            whole = torch.export.export(Form(name), given(7), dynamic_shapes=(size, size))
            programs |= {name: whole, f"{name}_of_7": torch.export.export(Form(name), given(7))}
        path = tmp_path_factory.mktemp(target) / "made.mxc"
        mxc.compile(programs, output=path, target=target, listing=False)
        return mxc.load(path, device=None if target == "cpu" else "simulator")

    return make


@pytest.mark.parametrize("target", ["cpu", "gfx950", "gfx942"])
@pytest.mark.parametrize("name", FORMS)
def test_the_numbers_of_torch(name: str, target: str, made: Callable[[str], Model]) -> None:
    model = made(target)
    for rows, program in ((4, name), (33, name), (7, f"{name}_of_7")):
        x, numbers = given(rows)
        (found,) = model.call(program, x.numpy(), numbers.numpy())
        wanted = FORMS[name](x, numbers).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=program)
