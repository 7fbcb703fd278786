"""Scales that rows share, repeated for each of them."""

import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.context import new_context
from mxc.dialects.repeated_rows import match_repeated_rows, repeat_rows


def matched(text: str) -> int | None:
    """How many rows share a scale of the result of a function; None where it repeats nothing so."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        (function,) = module.body.operations
        block = function.regions[0].blocks[0]
        *_, done = block.operations
        found = match_repeated_rows(done.operation.operands[0])
        assert found is None or found.source == block.arguments[0]
        return None if found is None else found.rows


def generic(read: str, given: str, made: str, body: str = "linalg.yield %a : f32") -> str:
    rank = made.count("x")
    loops = ", ".join("abcd"[:rank])
    kinds = ", ".join(['"parallel"'] * rank)
    return f"""
func.func @f(%s: tensor<{given}>) -> tensor<{made}> {{
  %e = tensor.empty() : tensor<{made}>
  %r = linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({read})>,
      affine_map<({loops}) -> ({loops})>], iterator_types = [{kinds}]}}
      ins(%s : tensor<{given}>) outs(%e : tensor<{made}>) {{
  ^bb0(%a: f32, %o: f32):
    {body}
  }} -> tensor<{made}>
  return %r : tensor<{made}>
}}"""


@pytest.mark.parametrize(
    ("shape", "count", "rows"), [((2, 4), 256, 128), ((2, 4), 192, 128), ((3, 2, 5), 128, 64)]
)
def test_what_is_built_is_matched(shape: tuple[int, ...], count: int, rows: int) -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        kind = ir.RankedTensorType.get(shape, ir.F32Type.get())
        found = []
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(kind)
            def main(scales: ir.Value) -> ir.Value:
                repeated = repeat_rows(scales, count, rows)
                assert ir.RankedTensorType(repeated.type).shape == [*shape[:-2], count, shape[-1]]
                match = match_repeated_rows(repeated)
                assert match is not None
                found.append((match.source == scales, match.rows))
                return repeated

        assert module.operation.verify()
        assert found == [(True, rows)]


def test_each_row_with_its_own_is_as_it_was() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f(%s: tensor<8x2xf32>) { return }")
        value = module.body.operations[0].regions[0].blocks[0].arguments[0]
        assert repeat_rows(value, 8, 1) == value
        with pytest.raises(ValueError, match="16 rows, 3 with the same scale, are not those of"):
            repeat_rows(value, 16, 3)


def test_rows_of_two_loops_that_are_merged() -> None:
    text = generic("a, c", "2x4xf32", "2x128x4xf32").replace(
        "return %r : tensor<2x128x4xf32>",
        "%j = tensor.collapse_shape %r [[0, 1], [2]] : tensor<2x128x4xf32> into tensor<256x4xf32>\n"
        "  return %j : tensor<256x4xf32>",
    )
    text = text.replace("-> tensor<2x128x4xf32> {\n  %e", "-> tensor<256x4xf32> {\n  %e")
    assert matched(text) == 128


@pytest.mark.parametrize(
    "text",
    [
        # Each row with its own; columns, not rows; rows that are apart; another loop; no copy.
        generic("a, b", "8x2xf32", "8x2xf32"),
        # More rows of scales than are read.
        generic("a floordiv 4, b", "3x2xf32", "8x2xf32"),
        generic("a, b floordiv 2", "8x2xf32", "8x4xf32"),
        generic("a mod 4, b", "4x2xf32", "8x2xf32"),
        generic("b floordiv 2, a", "2x8xf32", "8x4xf32"),
        generic(
            "a floordiv 4, b",
            "2x2xf32",
            "8x2xf32",
            "%n = arith.negf %a : f32\n    linalg.yield %n : f32",
        ),
    ],
)
def test_others_are_not_matched(text: str) -> None:
    assert matched(text) is None
