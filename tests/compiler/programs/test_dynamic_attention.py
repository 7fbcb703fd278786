"""Attention that JAX and torch programs write out, with numbers of sequences and tokens that come
with the call: a kernel computes each, on a CPU and on the simulator, with the framework's numbers.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report
from mxc.runtime.session import Model

Array = NDArray[Any]

RANDOM = np.random.default_rng(0)
#: Heads and elements of each.
H, D = 4, 16
WEIGHT = (RANDOM.standard_normal((H * D, H * D)) / 8).astype(np.float32)
X = RANDOM.standard_normal((3, 37, H * D)).astype(np.float32)


def jax_heads(x: Any, heads: int = H) -> Any:
    b, t, _ = x.shape
    return (x @ jnp.asarray(WEIGHT[:, : heads * D])).reshape(b, t, heads, D)


def jax_written(x: Any, seen: Callable[[Any, Any], Any], low: float = -1e9, kv: int = H) -> Any:
    """Attention to the keys for which `seen` of the numbers of queries and keys holds."""
    b, t, _ = x.shape
    q, k = (jax_heads(x, n).transpose(0, 2, 1, 3) for n in (H, kv))
    k = jnp.repeat(k, H // kv, axis=1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
    numbers = jnp.arange(t)
    scores = jnp.where(seen(numbers[:, None], numbers[None, :]), scores, low)
    return (jax.nn.softmax(scores, -1) @ k).transpose(0, 2, 1, 3).reshape(b, t, H * D)


def jax_function(x: Any, *, kv: int = H, causal: bool = False, padded: bool = False) -> Any:
    q, k = jax_heads(x), jax_heads(x, kv)
    mask = (x[:, :, 0] > -1)[:, None, None, :] if padded else None
    return jax.nn.dot_product_attention(q, k, k, mask=mask, is_causal=causal).reshape(x.shape)


class Torch(torch.nn.Module):
    """`mask`: what is done to scores [B, H, T, T], by the input of the module."""

    def __init__(self, mask: Callable[[Any, Any], Any] | None = None, kv: int = H) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(WEIGHT))
        self.mask, self.kv = mask, kv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = (x @ self.weight).view(b, t, H, D).transpose(1, 2)
        k = (x @ self.weight[:, : self.kv * D]).view(b, t, self.kv, D).transpose(1, 2)
        if self.mask is None:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
        else:
            k = k[:, :, None].expand(b, self.kv, H // self.kv, t, D).reshape(b, H, t, D)
            y = torch.softmax(self.mask(q @ k.transpose(2, 3) / 4, x), -1) @ k
        return y.transpose(1, 2).reshape(b, t, H * D)


def later(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """-inf is added to scores of later keys."""
    t = x.shape[1]
    return scores + torch.full((t, t), float("-inf")).triu(1)


def padding(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A number that is only low, in place of the scores of some keys of each sequence."""
    return scores.masked_fill((x[:, :, 0] < -1)[:, None, None, :], -1e4)


@dataclass(frozen=True)
class Form:
    """`kernel`: the end of the name of its kernel."""

    program: Any
    kernel: str


FORMS: Mapping[str, Form] = {
    "written": Form(lambda x: jax_written(x, lambda t, s: s <= t), "_dense_causal"),
    "strictly_before": Form(lambda x: jax_written(x, lambda t, s: s < t + 1, kv=2),
                            "_dense_causal"),
    "all_keys": Form(lambda x: jax_function(x), "_dense"),
    "window": Form(lambda x: jax_written(x, lambda t, s: (s <= t) & (t - s < 5)), "_dense_masked"),
    # No numbers of tokens up to 64 tell this from a causal mask.
    "few_keys": Form(lambda x: jax_written(x, lambda t, s: (s <= t) & (s < 1000)),
                     "_dense_masked"),
    "a_far_window": Form(lambda x: jax_written(x, lambda t, s: (s <= t) & (t - s < 1000)),
                         "_dense_masked"),
    "low": Form(lambda x: jax_written(x, lambda t, s: s <= t, low=-1e4), "_dense_masked"),
    "function": Form(lambda x: jax_function(x, causal=True), "_dense_causal"),
    "shared_heads": Form(lambda x: jax_function(x, causal=True, kv=2), "_dense_causal"),
    "keys_of_a_mask": Form(lambda x: jax_function(x, padded=True), "_dense_masked"),
    "torch_function": Form(Torch(), "_dense_causal"),
    "torch_shared_heads": Form(Torch(later, kv=2), "_dense_causal"),
    "torch_padding": Form(Torch(padding), "_dense_masked"),
}  # fmt: skip


def exported(program: Any) -> Any:
    if isinstance(program, torch.nn.Module):
        sizes = {axis: torch.export.Dim(name, min=2, max=4096) for axis, name in enumerate("bt")}
        return torch.export.export(program, (torch.tensor(X),), dynamic_shapes=(sizes,))
    shape = export.symbolic_shape(f"b, t, {H * D}")
    return export.export(jax.jit(program))(jax.ShapeDtypeStruct(shape, X.dtype))


def wanted(program: Any, x: Array) -> Array:
    if isinstance(program, torch.nn.Module):
        return np.asarray(program(torch.tensor(x)).detach().numpy())
    return np.asarray(program(jnp.asarray(x)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Model]:
    """All forms of JAX or of torch for a target."""

    @functools.cache
    def make(target: str, of_torch: bool) -> Model:
        programs = {
            name: exported(form.program)
            for name, form in FORMS.items()
            if isinstance(form.program, torch.nn.Module) == of_torch
        }
        path = tmp_path_factory.mktemp(target) / "made.mxc"
        mxc.compile(programs, output=path, target=target, listing=False)
        return mxc.load(path, device=None if target == "cpu" else "simulator")

    return make


@pytest.mark.parametrize("target", ["cpu", "gfx950"])
@pytest.mark.parametrize("name", FORMS)
def test_a_kernel_computes_it(name: str, target: str, made: Callable[[str, bool], Model]) -> None:
    form = FORMS[name]
    model = made(target, isinstance(form.program, torch.nn.Module))
    report = Report.from_dict(json.loads((model.path / REPORT).read_text()))
    kernels = [each.kernel for each in report.operations if each.function == name]
    ends = {kernel for kernel in kernels if kernel.split("_v")[0].endswith(form.kernel)}
    assert ends, kernels
    for x in (X, X[:2, :6]):
        given = model.call(name, x)
        (found,) = given if isinstance(given, list | tuple) else [given]
        np.testing.assert_allclose(found, wanted(form.program, x), rtol=1e-4, atol=1e-5)
