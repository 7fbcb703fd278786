"""Operations of torch that the importer does not lower: torch's numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

import mxc
from mxc.errors import CompileError
from mxc.runtime.session import Model

GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


X, IMAGES, TABLE = draw(3, 8), draw(2, 3, 6, 7), draw(10, 5)
UNKNOWN = X.clone()
UNKNOWN[1, 2] = float("nan")
WHOLE = torch.randint(-9, 9, (3, 7), generator=GENERATOR)
BYTES = torch.randint(0, 200, (3, 4), generator=GENERATOR, dtype=torch.uint8)
PLACES = torch.rand(2, 4, 5, 2, generator=GENERATOR) * 2.4 - 1.2
IDS, SMALL, SORTED = torch.tensor([5, 1, 6, 5, 6]), torch.tensor([1, 2, 3]), torch.arange(1.0, 5)
VALUES = torch.tensor([0.5, 2.0, 3.5, 9.0])
#: Each bag has some; the last has none.
STARTS = torch.tensor([0, 3, 5])


def bag(mode: str, **options: Any) -> Callable[..., Any]:
    return lambda ids, starts: functional.embedding_bag(ids, TABLE, starts, mode=mode, **options)


def sampled(mode: str, padding: str, corners: bool = False) -> Callable[..., Any]:
    return lambda images, places: functional.grid_sample(
        images, places, mode=mode, padding_mode=padding, align_corners=corners
    )


#: A function and its arguments.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bag_sum": (bag("sum"), (IDS, STARTS)),
    "bag_mean": (bag("mean"), (IDS, STARTS)),
    "bag_max": (bag("max"), (IDS, STARTS)),
    "bag_end": (bag("sum", include_last_offset=True), (IDS, STARTS)),
    "bag_padding": (bag("mean", padding_idx=5), (IDS, STARTS)),
    "bag_weights": (
        lambda ids, starts, by: functional.embedding_bag(
            ids, TABLE, starts, mode="sum", per_sample_weights=by
        ),
        (IDS, STARTS, draw(5)),
    ),
    "median": (lambda x: x.median(), (X,)),
    "median_with_nan": (lambda x: x.median(1)[0], (UNKNOWN,)),
    "median_place": (lambda x: x.median(0, keepdim=True)[1], (X,)),
    "median_of_integers": (lambda x: x.median(1)[0], (WHOLE,)),
    "kth_value": (lambda x: x.kthvalue(3, 0)[0], (X,)),
    "sample_border": (sampled("bilinear", "border"), (IMAGES, PLACES)),
    "sample_zeros": (sampled("bicubic", "zeros"), (IMAGES, PLACES)),
    "sample_reflection": (sampled("nearest", "reflection", True), (IMAGES, PLACES)),
    "softshrink": (functional.softshrink, (X,)),
    "sign": (torch.sign, (UNKNOWN,)),
    "sign_of_integers": (torch.sign, (WHOLE,)),
    "cosine_loss": (
        lambda a, b, y: functional.cosine_embedding_loss(a, b, y),
        (X, X.flip(0), torch.tensor([1.0, -1, 1])),
    ),
    "shifted": (lambda x: (1 << x) + (100 >> x), (SMALL,)),
    "powers": (torch.pow, (torch.tensor([2, 0, -1, 1, 3]), torch.tensor([63, 64, 65, -2, -1]))),
    "squares": (lambda x: x**2 + 2 ** x.abs(), (WHOLE,)),
    "rest_of_integers": (lambda x: x.fmod(4), (WHOLE,)),
    "rest": (lambda x: x.fmod(0.75), (X,)),
    "put": (lambda x, at, by: x.put(at, by), (X, torch.tensor([0, 5, 9]), draw(3))),
    "histogram": (lambda x: torch.histc(x, 4, -1, 1), (X,)),
    "histogram_of_all": (lambda x: torch.histc(x, 5), (X,)),
    "histogram_of_ends": (lambda x: torch.histc(x, 3, 0.5, 9), (VALUES,)),
    "scatter_a_number": (lambda x, at: x.scatter(1, at, 2.0), (X, torch.tensor([[1], [7], [0]]))),
    "scatter_columns": (
        lambda x, at: x.scatter(0, at, -x),
        (X, torch.tensor([[0, 2, 1, 1, 0, 2, 2, 0]])),
    ),
    "search": (torch.searchsorted, (SORTED, VALUES)),
    "search_right": (lambda a, b: torch.searchsorted(a, b, right=True), (SORTED, VALUES)),
    "identity": (lambda x: x + torch.eye(x.shape[0], x.shape[1]), (X,)),
    "products_of_bytes": (lambda x: x @ x.T, (BYTES,)),
    "no_noise": (lambda x: functional.rrelu(x, training=False), (X,)),
    "fake_quantized": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -9, 7), (X,)),
    "nothing": (lambda x: torch.cat([x, torch.tril_indices(0, 0).float().reshape(0, 8)]), (X,)),
}


def exported(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Any:
    module = torch.nn.Module()
    module.forward = lambda *given: function(*given)
    return torch.export.export(module, given)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    programs = {name: exported(*case) for name, case in CASES.items()}
    made = mxc.compile(programs, output=tmp_path_factory.mktemp("torch") / "o.mxc", listing=False)
    return mxc.load(made.path)


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_torch(name: str, model: Model) -> None:
    function, given = CASES[name]
    wanted = function(*(each.clone() for each in given)).numpy()
    (found,) = model.call(name, *(each.numpy() for each in given))
    found = np.asarray(found).view(wanted.dtype)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_bf16_is_sampled_in_f32(tmp_path: Path) -> None:
    """torch rounds each step."""
    given = (IMAGES.bfloat16(), PLACES.bfloat16())
    function = sampled("bilinear", "zeros")
    wanted = function(*(each.float() for each in given)).bfloat16().float().numpy()
    program = exported(lambda *each: function(*each).float(), given)
    made = mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
    narrow = [each.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for each in given]
    (found,) = mxc.load(made.path).call("main", *narrow)
    np.testing.assert_allclose(found, wanted, rtol=2**-8)


@pytest.mark.parametrize(
    "function",
    [lambda x: functional.dropout(x, 0.5, True), lambda x: x + torch.rand(8), torch.bernoulli],
)
def test_random_numbers_are_refused(function: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="draws random numbers"):
        mxc.compile(exported(function, (X.sigmoid(),)), output=tmp_path / "o.mxc", listing=False)


def test_a_number_of_python_is_refused(tmp_path: Path) -> None:
    program = exported(lambda x: x * x.sum().item(), (X,))
    with pytest.raises(CompileError, match=r"Tensor\.item\(\).* the tensor of one element"):
        mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
