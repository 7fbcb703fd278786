"""Operations that a pass erases: a worklist skips them, and the pass sanitizer finds their use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.passes import base
from mxc.passes.base import Pass
from mxc.passes.rewriting.sanitizer import ErasedOperationError
from mxc.passes.rewriting.worklist import Worklist, erase

PROGRAM = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %first = arith.negf %a : tensor<4xf32>
  %second = arith.negf %first : tensor<4xf32>
  return %second : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Rewrite(Pass):
    """A pass that calls `what` on the function `main`."""

    name: ClassVar[str] = "mxc-test-rewrite"
    what: Callable[[ir.Operation], None]

    def run(self, module: ir.Operation) -> None:
        self.what(module.regions[0].blocks[0].operations[0].operation)


def run(what: Callable[[ir.Operation], None]) -> str:
    with new_context():
        module = ir.Module.parse(PROGRAM)
        base.run([Rewrite(what)], module)
        return str(module)


def operations(function: ir.Operation) -> list[ir.Operation]:
    """Return the two negations of `main`."""
    return [op.operation for op in function.regions[0].blocks[0].operations][:2]


def drop_second(function: ir.Operation) -> None:
    """Let `main` return the first result, and erase the second operation."""
    first, second = operations(function)
    second.results[0].replace_all_uses_with(first.results[0])
    erase(second)


def test_a_worklist_leaves_out_what_is_erased_before_it_is_reached() -> None:
    visited = []

    def rewrite(function: ir.Operation) -> None:
        for op in Worklist(operations(function)):
            visited.append(str(op))
            if len(visited) == 1:
                drop_second(function)

    program = run(rewrite)
    assert len(visited) == 1
    assert program.count("arith.negf") == 1


def test_a_worklist_goes_backwards() -> None:
    visited: list[bool] = []

    def rewrite(function: ir.Operation) -> None:
        first, second = operations(function)
        visited.extend(op == second for op in reversed(Worklist([first, second])))

    run(rewrite)
    assert visited == [True, False]


@pytest.mark.parametrize(
    "use",
    [
        lambda op: op.attributes,
        lambda op: op.name,
        lambda op: op.operands,
        lambda op: op.clone(),
        lambda op: op.erase(),
        lambda op: op.opview.operands,
    ],
    ids=["attributes", "name", "operands", "clone", "erase", "view"],
)
def test_the_sanitizer_finds_the_use_of_an_erased_operation(
    use: Callable[[ir.Operation], object],
) -> None:
    def rewrite(function: ir.Operation) -> None:
        # A pass that keeps a list of operations may use one after it is erased.
        found = operations(function)
        drop_second(function)
        use(found[1])

    with pytest.raises(ErasedOperationError, match=r"of arith\.negf, which this pass has erased"):
        run(rewrite)


def test_the_sanitizer_finds_the_use_of_a_result_of_an_erased_operation() -> None:
    def rewrite(function: ir.Operation) -> None:
        result = operations(function)[1].results[0]
        drop_second(function)
        list(result.uses)

    with pytest.raises(ErasedOperationError, match="uses of arith"):
        run(rewrite)


def test_under_the_sanitizer_an_erased_operation_uses_nothing() -> None:
    uses: list[Any] = []

    def rewrite(function: ir.Operation) -> None:
        first = operations(function)[0]
        drop_second(function)
        uses.extend(use.owner.name for use in first.results[0].uses)

    run(rewrite)
    assert uses == ["func.return"]


def test_without_the_sanitizer_erased_operations_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MXC_SANITIZE_PASSES")
    assert run(drop_second).count("arith.negf") == 1
