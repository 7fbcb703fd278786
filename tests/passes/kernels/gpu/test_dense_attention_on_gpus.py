"""Attention over dense keys and values by kernels for GPUs, on the simulator, against torch.

All sizes are static, so that IREE knows which case of a kernel a call takes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.passes import test_raise_attention as written
from tests.passes.test_dense_attention import Case, check, draw, program

#: Sequences of one, whose pieces have waves of their own; prompts, of which a wave may have two
#: tiles of rows; keys of part of a piece and of several; values of another size.
CASES = [
    Case(1, 45, 64, 2, 4, 64, causal=True, element="bf16"),
    Case(1, 45, 64, 2, 4, 64, element="bf16"),
    Case(2, 40, 96, 1, 2, 32, causal=True, element="f16"),
    Case(1, 1, 544, 2, 8, 64, element="bf16"),
    Case(2, 33, 320, 1, 1, 128, mixed=48, element="bf16"),
]


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def compiled(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> Any:
    return watched(program(CASES).decode(), target=request.param)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case: Case, compiled: Any) -> None:
    given = draw(case)
    # The second one adds pieces up, if a call has some.
    (found,) = compiled.call(str(case), *given, kernels=2)
    assert all(kernel.name.startswith("mxc_attention") for kernel, _ in compiled.seen)
    # Long heads have one case.
    one_tile = case.depth <= 64 and (case.tokens == 1 or case.count > 1)
    assert compiled.seen[0][0].name.endswith("_from_1") == one_tile
    shape = (*given[0].shape[:-1], case.mixed or case.depth)
    check(found.view(np.float32).reshape(shape), case, given)


#: Causal attention that a program writes out, with finite numbers for later keys.
WRITTEN = ("causal", "products_from_constants")


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def raised(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> Any:
    forms = [written.function(name, written.FORMS[name]) for name in WRITTEN]
    return watched("".join(forms), target=request.param)


@pytest.mark.parametrize("name", WRITTEN)
def test_attention_that_is_written_out(name: str, raised: Any) -> None:
    form = written.FORMS[name]
    given = written.draw(form)
    (found,) = raised.call(name, *given, kernels=2)
    assert all(kernel.name.startswith("mxc_attention") for kernel, _ in raised.seen)
    wanted = written.expected(form, given)
    found = found.view(np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
