"""Which values hold weights, in programs that are longer than Python's stack."""

from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.dispatches import dispatches
from mxc.passes.verify_packed_weights import WeightValues

#: Dispatches, each of which reads what the one before has written.
COUNT = 3000


def test_a_long_chain() -> None:
    steps = "\n".join(
        f"%{number + 1} = flow.dispatch @x::@x(%{number}) : (tensor<4xf32>) -> tensor<4xf32>"
        for number in range(COUNT)
    )
    text = f"""
        util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
        util.func public @f() -> tensor<4xf32> {{
          %0 = util.global.load immutable @w : tensor<4xf32>
          {steps}
          util.return %{COUNT} : tensor<4xf32>
        }}"""
    with new_context():
        module = ir.Module.parse(text)
        every = dispatches(module.operation)
        weights = WeightValues(every)
        first, *_, last = every
        assert weights.hold(first.op.operands[0])
        assert not weights.hold(last.op.results[0])
