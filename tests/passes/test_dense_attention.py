"""Kernels of attention over dense keys and values, against torch in float64.

Error bounds are those of attention_cases.py: the error of a score is about scale |q| |k| u; that of
a result, which is a mean of values, is this times the largest value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from iree import runtime as rt
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.steps import CompileRequest
from mxc.dialects.context import new_context
from mxc.dialects.dense_attention import dense_attention
from mxc.runtime.device import open_device
from mxc.targets.target import target
from tests.passes.attention_cases import TYPES, U, function

Array = NDArray[Any]

TARGETS = ["cpu"] + ["cpu:x86-64-v3"] * iree.resolve(target("cpu")).has_any(("avx512bw",))


@dataclass(frozen=True)
class Case:
    """Attention of `count` sequences, each with `tokens` queries and `keys` keys.

    `mixed`: elements of a value; 0: `depth`. `element`: type of keys and values. `mask`: the first
    three sizes of the mask; empty: no mask. `dynamic`: whether the numbers of tokens and keys come
    with the call.
    """

    count: int
    tokens: int
    keys: int
    heads: int
    group: int
    depth: int
    mixed: int = 0
    element: str = "f32"
    causal: bool = False
    mask: tuple[int, ...] = ()
    dynamic: bool = False

    def __str__(self) -> str:
        sizes = self.count, self.tokens, self.keys, self.heads, self.group, self.depth, self.mixed
        name = "x".join(map(str, sizes)) + f"_{self.element}"
        name += "_causal" * self.causal + "_dynamic" * self.dynamic
        return name + "".join(f"_{size}" for size in self.mask)

    @property
    def shapes(self) -> list[tuple[list[int], str]]:
        """Shapes and element types of queries, keys, values and mask."""
        keys = [self.count, self.keys, self.heads]
        found = [
            ([self.count, self.tokens, self.heads, self.group, self.depth], "f32"),
            ([*keys, self.depth], self.element),
            ([*keys, self.mixed or self.depth], self.element),
        ]
        return [*found, ([*self.mask, self.keys], "f32")] if self.mask else found

    @property
    def types(self) -> list[tuple[list[int], str]]:
        """Shapes and element types in the type of the function, where some sizes are dynamic."""
        if not self.dynamic:
            return self.shapes
        some, found = ir.ShapedType.get_dynamic_size(), []
        for number, (shape, element) in enumerate(self.shapes):
            axes = {1} if number < 3 else {2, 3} if shape[2] > 1 else {3}
            found.append(([some if i in axes else n for i, n in enumerate(shape)], element))
        return found


#: Part of a block of keys, several blocks and several pieces; one query and many; groups that fill
#: a tile or not; values of another size than keys; masks with and without sizes of one.
CASES = [
    Case(2, 5, 5, 3, 1, 16, causal=True),
    Case(1, 45, 45, 2, 4, 64, causal=True, element="bf16"),
    Case(2, 300, 300, 1, 2, 32, causal=True),
    Case(1, 7, 3, 2, 1, 16, causal=True),
    Case(1, 3, 7, 2, 1, 16, causal=True),
    Case(2, 1, 700, 2, 8, 64, element="f16"),
    Case(3, 40, 77, 4, 1, 80, mixed=48),
    Case(1, 130, 33, 1, 3, 128, element="bf16"),
    Case(2, 20, 45, 2, 2, 64, mask=(2, 4, 20)),
    Case(2, 20, 45, 2, 2, 64, mask=(2, 1, 1)),
    Case(1, 33, 64, 2, 1, 32, mask=(1, 2, 33)),
    Case(2, 1, 600, 1, 8, 48, mask=(1, 8, 1), element="bf16"),
    Case(2, 31, 31, 2, 1, 64, mask=(1, 1, 31), causal=True),
    Case(2, 61, 61, 2, 1, 64, causal=True, dynamic=True),
    Case(2, 9, 61, 2, 2, 64, dynamic=True),
    Case(2, 9, 61, 2, 2, 64, mask=(2, 1, 9), dynamic=True),
    Case(2, 20, 45, 2, 2, 40, mixed=72, mask=(2, 1, 20), element="bf16"),
    Case(2, 20, 45, 2, 2, 5, dynamic=True),
]
#: A case that no kernel takes.
NO_KERNEL = Case(2, 20, 45, 1, 1, 8200, mask=(2, 1, 20))


def program(cases: list[Case]) -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in cases:
                kinds = [
                    ir.RankedTensorType.get(shape, TYPES[element][0].get())
                    for shape, element in case.types
                ]

                def body(*given: ir.Value, case: Case = case) -> ir.Value:
                    return dense_attention(*given, causal=case.causal, scale=case.depth**-0.5)

                function(str(case), kinds, body)
        return str(module).encode()


Load = Callable[[str], Any]


@dataclass(frozen=True)
class Loaded:
    context: rt.VmContext
    module: rt.VmModule
    device: Any
    rows: list[dict[str, Any]]
    notes: tuple[str, ...]

    def attend(self, case: Case, given: list[Array]) -> Array:
        entry = self.module.lookup_function(str(case))
        return np.array(rt.FunctionInvoker(self.context, self.device, entry)(*given).to_host())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that loads the program for a target; "none": the case without a kernel."""
    found: dict[str, Loaded] = {}

    def load(name: str) -> Loaded:
        if name not in found:
            folder = tmp_path_factory.mktemp("attention")
            request = CompileRequest(
                program=program([NO_KERNEL] if name == "none" else CASES),
                place="attention",
                target="cpu" if name == "none" else name,
                module=folder / "module.vmfb",
                listed=False,
            )
            made = compile_here(request, None, folder / "program", lambda step: None)
            device, instance = open_device("local-task", 2, "test"), rt.VmInstance()
            module = rt.VmModule.mmap(instance, str(request.module))
            modules = [rt.create_hal_module(instance, device), module]
            context = rt.VmContext(instance, modules)
            rows = made.report["operations"]
            found[name] = Loaded(context, module, device, rows, made.notes)
        return found[name]

    return load


def draw(case: Case, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    given = [rng.normal(size=shape).astype(TYPES[kind][1]) for shape, kind in case.shapes]
    if case.mask:
        given[3][rng.random(given[3].shape) < 0.3] = -np.inf
    return given


def expected(case: Case, given: list[Array]) -> Array:
    queries, keys, values, *mask = (torch.from_numpy(each.astype(np.float64)) for each in given)
    rows = queries.flatten(2, 3).transpose(1, 2)
    bias = torch.zeros(1, 1, case.tokens, case.keys, dtype=torch.float64)
    for each in mask:
        bias = bias + each
    if case.causal:
        later = torch.ones(case.tokens, case.keys).triu(1).bool()
        bias = bias.masked_fill(later, -torch.inf)
    found = torch.nn.functional.scaled_dot_product_attention(
        rows, keys.transpose(1, 2), values.transpose(1, 2), bias, enable_gqa=True
    )
    return np.asarray(found.transpose(1, 2).unflatten(2, (case.heads, case.group)))


def check(found: Array, case: Case, given: list[Array]) -> None:
    queries, keys, values = (np.abs(each.astype(np.float64)) for each in given[:3])
    score = case.depth**-0.5 * np.linalg.norm(queries, axis=-1).max()
    bound = 8 * U * (2 + score * np.linalg.norm(keys, axis=-1).max()) * values.max()
    np.testing.assert_allclose(found, expected(case, given), rtol=0, atol=bound)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case: Case, name: str, loaded: Load) -> None:
    found = loaded(name)
    given = draw(case)
    check(found.attend(case, given), case, given)
    kernels = [row["kernel"] for row in found.rows if row["function"] == str(case)]
    assert any(kernel.startswith("mxc_attention") for kernel in kernels)


@pytest.mark.parametrize("case", [c for c in CASES if c.mask], ids=str)
def test_a_row_of_which_all_is_masked_is_zero(case: Case, loaded: Load) -> None:
    """As in torch; a mask of numbers that are only very low gives the mean of the values."""
    given = draw(case)
    given[3][...] = -np.inf
    assert not loaded("cpu").attend(case, given).any()
    given[3][...] = np.finfo(np.float32).min
    check(loaded("cpu").attend(case, given), case, given)


@pytest.mark.parametrize("case", [Case(2, 300, 300, 1, 2, 32, causal=True)], ids=str)
def test_a_later_key_is_not_read(case: Case, loaded: Load) -> None:
    """Its value may be NaN."""
    given = draw(case)
    right = loaded("cpu").attend(case, given)
    for each in given[1:]:
        each[:, 200:] = np.nan
    found = loaded("cpu").attend(case, given)
    np.testing.assert_array_equal(found[:, :200], right[:, :200])
    assert np.isnan(found[:, 200:]).all()


def test_what_no_kernel_takes_is_a_note(loaded: Load) -> None:
    """With the reason; the numbers are right."""
    found, given = loaded("none"), draw(NO_KERNEL)
    check(found.attend(NO_KERNEL, given), NO_KERNEL, given)
    (note,) = found.notes
    assert "IREE's code generator computes @mxc.dense_attention: keys have 8208 elements" in note
    given[3][...] = -np.inf
    assert not found.attend(NO_KERNEL, given).any()
