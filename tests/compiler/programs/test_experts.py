"""Mixtures of experts that torch and JAX programs write out: kernels read the matrices of the
experts where they are, on a CPU and on the simulator, with the framework's numbers.

Letters: T tokens, E experts, J of them a token, K and N of their matrices.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers.integrations.moe  # registers the operator that exported models have
from jax import export
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Matmul, Report
from mxc.errors import CompileError
from mxc.runtime.session import Model

Array = NDArray[Any]

assert transformers.integrations.moe
RANDOM = np.random.default_rng(0)
E, J, K, N, BLOCK = 8, 2, 96, 64, 32
#: Small integers over a power of two: every sum is exact, in bf16 too.
UP = RANDOM.integers(-2, 3, (E, 2 * N, K)).astype(np.float32) / 4
DOWN = RANDOM.integers(-2, 3, (E, K, N)).astype(np.float32) / 4
CODES = {name: RANDOM.integers(0, 256, (E, rows, K // BLOCK, BLOCK // 2), dtype=np.uint8)
         for name, rows in (("up", 2 * N), ("down", N))}  # fmt: skip
SCALES = {name: RANDOM.integers(125, 129, codes.shape[:-1], dtype=np.uint8)
          for name, codes in CODES.items()}  # fmt: skip
VALUES = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def sizes_of(tokens: int) -> tuple[Array, Array, Array]:
    """Rows, experts and shares of so many tokens; the experts of a token differ."""
    x = RANDOM.integers(-4, 5, (tokens, K)).astype(np.float32) / 4
    ids = np.stack([RANDOM.permutation(E)[:J] for _ in range(tokens)])
    return x, ids, RANDOM.integers(1, 5, (tokens, J)).astype(np.float32) / 4


class Experts(torch.nn.Module):
    """A layer of experts. `form`: how it chooses their matrices; `kind`: of dense weights."""

    def __init__(self, form: str, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.form, self.kind = form, kind
        self.up, self.down = (torch.nn.Parameter(torch.tensor(w).to(kind)) for w in (UP, DOWN))

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return getattr(self, name)[ids]

    def whole(self, name: str) -> torch.Tensor:
        return getattr(self, name)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return self.routed(x.to(self.kind), ids, shares.to(self.kind)).float()

    def routed(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        if self.form == "einsum":
            inner = torch.einsum("beck,bk->bec", self.chosen("up", ids), x)
            made = torch.einsum("beck,bek->bec", self.chosen("down", ids), gated(inner))
            return (made * shares[..., None]).sum(1)
        if self.form == "batched":
            pairs = ids.reshape(-1)
            rows = x.repeat_interleave(J, dim=0)
            inner = torch.bmm(self.chosen("up", pairs), rows[..., None])[..., 0]
            made = torch.bmm(self.chosen("down", pairs), gated(inner)[..., None])[..., 0]
            return (made * shares.reshape(-1, 1)).view(-1, J, K).sum(1)
        chosen, order = torch.sort(ids.reshape(-1))
        counts = torch.histc(chosen.float(), bins=E, min=0, max=E - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        product = torch.nn.functional.grouped_mm
        if self.kind != torch.bfloat16:
            product = torch.ops.transformers.grouped_mm_fallback
        inner = product(x[order // J], self.whole("up").transpose(1, 2), offs=ends)
        made = product(gated(inner), self.whole("down").transpose(1, 2), offs=ends)
        made = made * shares.reshape(-1)[order][:, None]
        return made[order.argsort()].view(-1, J, K).sum(1)


class PackedExperts(Experts):
    """Experts in mxfp4; `first`: chosen before they are decoded."""

    def __init__(self, form: str, first: bool) -> None:
        super().__init__(form)
        self.first = first
        self.codes, self.scales = ({name: torch.tensor(each) for name, each in parts.items()}
                                   for parts in (CODES, SCALES))  # fmt: skip

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        if not self.first:
            return self.whole(name)[ids]
        return decoded(self.codes[name][ids], self.scales[name][ids])

    def whole(self, name: str) -> torch.Tensor:
        return decoded(self.codes[name], self.scales[name])

    def routed(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        pairs, rows = ids.reshape(-1), x.repeat_interleave(J, dim=0)
        if self.form == "grouped":
            return super().routed(x, ids, shares)
        made = torch.bmm(self.chosen("up", pairs), rows[..., None])[..., 0]
        return (made * shares.reshape(-1, 1)).view(-1, J, 2 * N).sum(1)


def gated(inner: torch.Tensor) -> torch.Tensor:
    gate, up = inner.chunk(2, -1)
    return torch.relu(gate) * up / 16


def decoded(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """mxfp4 [.., KO, 16] as torch programs decode it, [.., K]."""
    table = torch.tensor(VALUES)
    halves = [table[half.to(torch.int64)] for half in (codes & 15, codes >> 4)]
    elements = torch.stack(halves, -1).flatten(-2)
    return torch.ldexp(elements, scales.to(torch.int32)[..., None] - 127).flatten(-2)


class OnlyUp(PackedExperts):
    """One product by groups, of packed weights."""

    def routed(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        chosen, order = torch.sort(ids.reshape(-1))
        # The rows of the last expert are behind the last end: they are zero.
        ends = (chosen[:, None] <= torch.arange(E - 1)).sum(0).to(torch.int32)
        ends = torch.cat([ends, ends[-1:]])
        product = torch.ops.transformers.grouped_mm_fallback
        made = product(x[order // J], self.whole("up").transpose(1, 2), offs=ends)
        made = made * shares.reshape(-1)[order][:, None]
        return made[order.argsort()].view(-1, J, 2 * N).sum(1)


def jax_looked_up(x: Any, ids: Any, shares: Any) -> Any:
    """Tables [E, K, N]."""
    up, down = (jnp.asarray(w.transpose(0, 2, 1)) for w in (UP, DOWN))
    gate, linear = jnp.split(jnp.einsum("tk,tjkn->tjn", x, up[ids]), 2, -1)
    made = jnp.einsum("tjn,tjnk->tjk", jax.nn.relu(gate) * linear / 16, down[ids])
    return jnp.einsum("tjk,tj->tk", made, shares)


TORCH: Mapping[str, Experts] = {
    "batched": Experts("batched"),
    "batched_bf16": Experts("batched", torch.bfloat16),
    "einsum_bf16": Experts("einsum", torch.bfloat16),
    "grouped": Experts("grouped"),
    "grouped_bf16": Experts("grouped", torch.bfloat16),
    "packed": PackedExperts("batched", first=False),
    "packed_first": PackedExperts("batched", first=True),
    "packed_grouped": OnlyUp("grouped", first=False),
}
TARGETS = ["cpu", "gfx950", "gfx942"]


def exported(module: torch.nn.Module, tokens: int | None = None) -> Any:
    """For so many tokens, or for those that come with the call."""
    arguments = tuple(map(torch.tensor, sizes_of(tokens or 5)))
    sizes = {0: torch.export.Dim("t", min=2, max=4096)}
    dynamic = (sizes,) * 3 if tokens is None else None
    return torch.export.export(module, arguments, dynamic_shapes=dynamic)


def exported_from_jax(tokens: str) -> Any:
    kinds = (np.float32, np.int32, np.float32)
    (count,) = export.symbolic_shape(tokens)
    shapes = [(count, width) for width in (K, J, J)]
    given = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, kinds, strict=True)]
    return export.export(jax.jit(jax_looked_up))(*given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Model]:
    """All programs of torch or of JAX for a target."""

    @functools.cache
    def make(target: str, of_torch: bool) -> Model:
        if of_torch:
            programs = {name: exported(each) for name, each in TORCH.items()}
        else:
            programs = {"dynamic": exported_from_jax("t"), "known": exported_from_jax("9")}
        path = tmp_path_factory.mktemp(target) / "made.mxc"
        mxc.compile(programs, output=path, target=target, listing=False)
        return mxc.load(path, device=None if target == "cpu" else "simulator")

    return make


def report_of(model: Model) -> Report:
    return Report.from_dict(json.loads((model.path / REPORT).read_text()))


def weights_of(model: Model, name: str) -> list[Matmul]:
    """The contractions of a program, without sums by the shares of a token."""
    return [each for each in report_of(model).matmuls if each.function == name and each.n > 1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TORCH)
def test_experts_of_torch(name: str, target: str, made: Callable[[str, bool], Model]) -> None:
    model = made(target, True)
    for tokens in (2, 9, 40):
        given = sizes_of(tokens)
        wanted = TORCH[name](*map(torch.tensor, given)).detach().numpy()
        (found,) = model.call(name, *given)
        np.testing.assert_array_equal(found, wanted)
    weights = weights_of(model, name)
    assert weights
    # f32 weights on a GPU are IREE's to multiply; it reads them in place.
    if target == "cpu" or "bf16" in name or "packed" in name:
        assert [each.reason for each in weights] == [None] * len(weights)


@pytest.mark.parametrize("target", TARGETS)
def test_no_weight_is_copied(target: str, made: Callable[[str, bool], Model]) -> None:
    findings = report_of(made(target, True)).findings
    assert not [each for each in findings if "copy of a weight" in str(each)], findings


@pytest.mark.parametrize("target", ["cpu", "gfx950"])
@pytest.mark.parametrize("tokens", [1, 2, E // J, 9])
def test_a_known_number_of_tokens(tokens: int, target: str, tmp_path: Path) -> None:
    """Also where pairs are as many as experts, or half as many."""
    programs = {name: exported(each, tokens) for name, each in TORCH.items()}
    made = mxc.compile(programs, output=tmp_path / "o.mxc", target=target, listing=False)
    model = mxc.load(made.path, device=None if target == "cpu" else "simulator")
    for name, module in TORCH.items():
        given = sizes_of(tokens)
        wanted = module(*map(torch.tensor, given)).detach().numpy()
        (found,) = model.call(name, *given)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        if "packed" in name:
            assert {each.reason for each in weights_of(model, name)} == {None}


@pytest.mark.parametrize("name", ["dynamic", "known"])
def test_experts_of_jax(name: str, made: Callable[[str, bool], Model]) -> None:
    model = made("cpu", False)
    for tokens in (9,) if name == "known" else (1, 9, 40):
        x, ids, shares = sizes_of(tokens)
        ids = ids.astype(np.int32)
        wanted = jax_looked_up(jnp.asarray(x), jnp.asarray(ids), jnp.asarray(shares))
        (found,) = model.call(name, x, ids, shares)
        np.testing.assert_array_equal(found, np.asarray(wanted))
    weights = weights_of(model, name)
    assert [each.reason for each in weights] == [None, None]


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_rows_are_grouped_on_gpus(target: str, made: Callable[[str, bool], Model]) -> None:
    """Each expert is read once for the rows of a group, not once for each."""
    weights = weights_of(made(target, True), "packed")
    assert [(each.batch, each.m) for each in weights] == [(-1, -1)]


class Columns(torch.nn.Module):
    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, x.t(), offs=ends)


def test_groups_of_the_sum_are_refused(tmp_path: Path) -> None:
    given = (torch.zeros(16, 16, dtype=torch.bfloat16), torch.tensor([8, 16], dtype=torch.int32))
    program = torch.export.export(Columns(), given)
    with pytest.raises(CompileError, match="_grouped_mm of 2 by 2 dimensions has no lowering"):
        mxc.compile(program, output=tmp_path / "o.mxc", listing=False)
