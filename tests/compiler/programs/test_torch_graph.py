"""Views and assertions in programs of torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import mxc
from mxc.errors import CompileError

GENERATOR = torch.Generator().manual_seed(0)
BATCH, TOKENS, HEADS, SIZE = 1, 17, 4, 8
Q, K, V = (torch.randn(BATCH, TOKENS, HEADS, SIZE, generator=GENERATOR) for _ in range(3))


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rows [B, T, H, D], adjacent in torch's own result, which alone makes views of them right."""
    turned = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(*turned).permute(0, 2, 1, 3)


def a_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return attended(q, k, v).view(BATCH, TOKENS, HEADS * SIZE) + 1


def a_view_as(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return attended(q, k, v).view_as(q.flatten(2)) + 1


def writes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """What is written to a view is in the tensor that it is of, also through two views."""
    whole = q * 2
    flat = whole.view(BATCH, TOKENS, HEADS * SIZE)
    flat[:, 3:5].add_(1)
    turned = whole.transpose(1, 2).contiguous()
    turned.view(-1)[:20].mul_(k.view(-1)[:20])
    left, _ = v.clone().view(BATCH, TOKENS, HEADS * SIZE).split(HEADS * SIZE // 2, 2)
    left.view(BATCH, TOKENS, 4, 4).fill_(3.0)
    return whole, flat, turned, left * 2


def writes_a_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    rows = attended(q, k, v)
    rows.view(BATCH, TOKENS, HEADS * SIZE)[:, 3:5].add_(1)
    return rows


def exported(function: Callable[..., Any], given: tuple[torch.Tensor, ...], **options: Any) -> Any:
    module = torch.nn.Module()
    module.forward = lambda *given: function(*given)
    return torch.export.export(module, given, **options)


@pytest.mark.parametrize("function", [a_view, a_view_as, writes])
def test_views(function: Callable[..., Any], tmp_path: Path) -> None:
    program = exported(function, (Q, K, V))
    before = str(program.graph)
    made = mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
    assert str(program.graph) == before
    wanted = function(Q, K, V)
    found = mxc.load(made.path).call("main", *(each.numpy() for each in (Q, K, V)))
    for mine, torchs in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        np.testing.assert_allclose(mine, torchs.numpy(), rtol=1e-5, atol=1e-6)


def test_no_write_to_a_copy_is_lost(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="Cannot view a tensor"):
        mxc.compile(exported(writes_a_view, (Q, K, V)), output=tmp_path / "o.mxc", listing=False)


@pytest.mark.parametrize("constant", [3, None, True])
def test_arguments_that_are_no_tensors(constant: Any, tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, by: Any) -> torch.Tensor:
        return x * (by or 2)

    program = exported(scaled, (Q, constant))
    made = mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
    (found,) = mxc.load(made.path).call("main", Q.numpy())
    np.testing.assert_array_equal(found, scaled(Q, constant).numpy())


def an_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    torch._check(n.max().item() <= 4)
    return x * 2


def of_data(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    torch._assert_async(n.sum() > 0, "a positive sum")
    return x * n


def of_sizes(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] == 4 * n.shape[0])
    return x.sum() + n.sum()


@pytest.mark.parametrize(
    ("function", "said"), [(an_item, "u0 <= 4"), (of_data, "a positive sum"), (of_sizes, "Eq(")]
)
def test_assertions_are_in_a_note(function: Callable[..., Any], said: str, tmp_path: Path) -> None:
    """Also those of numbers of Python, which are made for them alone."""
    given = torch.ones(8), torch.tensor([1, 2])
    options: dict[str, Any] = {}
    if function is of_sizes:
        free = {0: torch.export.Dim.DYNAMIC}
        options["dynamic_shapes"] = ((free, free),)
        options["prefer_deferred_runtime_asserts_over_guards"] = True
    elif function is of_data:
        given = torch.ones(2), given[1]
    program = exported(function, given, **options)
    made = mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
    (note,) = (each for each in made.manifest.notes if "is not checked: " in each)
    assert said in note
    (found,) = mxc.load(made.path).call("main", *(each.numpy() for each in given))
    np.testing.assert_array_equal(found, function(*given).numpy())
