"""The report counts what runs before and after a kernel of ours, and what is read of a cache."""

import io

import pytest
from iree.compiler import ir
from rich.console import Console

from mxc.compiler.cli.report_table import render
from mxc.compiler.report import Matmul, Report, build_report
from mxc.compiler.report.assembly import parse_all
from mxc.dialects.context import new_context
from mxc.targets.target import target

M, N, K = 16, 128, 64
DISPATCH = "!iree_tensor_ext.dispatch.tensor"
#: Bytes of activations, of weights with their scales, and of results.
ROWS, WEIGHTS, RESULT, HALF = 2 * M * K, N * K // 2 + N * K // 32, 4 * M * N, 2 * M * N


def executable(name: str, types: list[str], body: str) -> str:
    """A kernel over tensors of these types, of which the last one is written."""
    kinds = [f"{DISPATCH}<readonly:{kind}>" for kind in types[:-1]]
    kinds.append(f"{DISPATCH}<writeonly:{types[-1]}>")
    arguments = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(kinds))
    return f"""
flow.executable private @{name} {{
  flow.executable.export public @{name}
  builtin.module {{
    func.func @{name}({arguments}) {{
      {body}
      return
    }}
  }}
}}
"""


def load(result: str, place: int, kind: str, offset: int = 0, part: str = "") -> str:
    sizes = (part or kind).removeprefix("tensor<").rsplit("x", 1)[0].split("x")
    offsets = [*["0"] * (len(sizes) - 1), str(offset)]
    return (
        f"%{result} = iree_tensor_ext.dispatch.tensor.load %a{place}, "
        f"offsets = [{', '.join(offsets)}], sizes = [{', '.join(sizes)}], "
        f"strides = [{', '.join('1' for _ in sizes)}] : {DISPATCH}<readonly:{kind}> "
        f"-> {part or kind}\n"
    )


def computed(maps: list[str], inputs: list[str], types: list[str], kinds: str) -> str:
    """A generic that adds its two inputs."""
    loops = "(m, n)"
    listed = ", ".join(f"affine_map<{loops} -> {each}>" for each in maps)
    return f"""
      %e = tensor.empty() : {types[-1]}
      %r = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{kinds}]}}
        ins({", ".join(inputs)} : {", ".join(types[:-1])}) outs(%e : {types[-1]}) {{
      ^bb0(%i: f32, %j: f32, %o: f32):
        %n = linalg.index 1 : index
        %z = arith.addf %i, %j : f32
        linalg.yield %z : f32
      }} -> {types[-1]}
"""


WHOLE, ROW, NARROW = f"tensor<{M}x{N}xf32>", f"tensor<{N}xf32>", f"tensor<{M}x{N // 2}xf32>"
PARALLEL = '"parallel", "parallel"'
OPERANDS = [f"tensor<{M}x{K}xbf16>", f"tensor<{N * K // 2}xi8>", f"tensor<{N * K // 32}xi8>"]
BIAS = load("x", 0, WHOLE) + load("b", 1, ROW)
BIAS += computed(["(m, n)", "(n)", "(m, n)"], ["%x", "%b"], [WHOLE, ROW, WHOLE], PARALLEL)
GATE = load("x", 0, WHOLE, 0, NARROW) + load("y", 0, WHOLE, N // 2, NARROW)
GATE += computed(["(m, n)"] * 3, ["%x", "%y"], [NARROW] * 3, PARALLEL)
SUM = load("x", 0, WHOLE) + load("b", 1, WHOLE)
SUM += computed(
    ["(m, n)", "(m, n)", "(m)"], ["%x", "%b"], [WHOLE, WHOLE, f"tensor<{M}xf32>"],
    '"parallel", "reduction"',
)  # fmt: skip
#: The product, which says what it is, and the names of the values after it.
PRODUCT = (
    f"%p = flow.dispatch @product::@product(%x, %w, %s) {{mxc.contraction = {{batch = 1, m = {M}, "
    f"n = {N}, k = {K}, lhs = {{element = bf16}}, out = {{element = f32}}, "
    'rhs = {block = 32, element = f4E2M1FN, scale = f8E8M0FNU}, kind = "matrix"}} '
    f": ({', '.join(OPERANDS)}) -> {WHOLE}\n"
)
#: The same, which says why the bias is not computed in it.
WHY = "it looks up elements of tensor<5x128xf32> one by one"
UNFUSED = PRODUCT.replace('kind = "matrix"', f'kind = "matrix", unfused = "{WHY}"')
BIASED = f"%q = flow.dispatch @bias::@bias(%p, %b) : ({WHOLE}, {ROW}) -> {WHOLE}\n"
GATED = f"%g = flow.dispatch @gate::@gate(%q) : ({WHOLE}) -> {NARROW}\n"
SUMMED = f"%t = flow.dispatch @sum::@sum(%p, %p) : ({WHOLE}, {WHOLE}) -> tensor<{M}xf32>\n"


def function(name: str, body: str, result: str, kind: str) -> str:
    arguments = ", ".join(f"%{n}: {k}" for n, k in zip("xws", OPERANDS, strict=True))
    return f"""
util.func public @{name}({arguments}, %b: {ROW}) -> {kind} {{
  {body}
  util.return %{result} : {kind}
}}
"""


#: The scales [K / 32, N] of a weight, which one kernel writes in the order of another.
SCALES = f"tensor<{K // 32}x{N}xi8>"
REORDER = load("x", 0, SCALES)
REORDER += f"""
      %e = tensor.empty() : tensor<{N}x{K // 32}xi8>
      %r = linalg.transpose ins(%x : {SCALES}) outs(%e : tensor<{N}x{K // 32}xi8>)
        permutation = [1, 0]
"""
REORDER += (
    f"iree_tensor_ext.dispatch.tensor.store %r, %a1, offsets = [0, 0], sizes = [{N}, {K // 32}], "
    f"strides = [1, 1] : tensor<{N}x{K // 32}xi8> -> "
    f"{DISPATCH}<writeonly:tensor<{N}x{K // 32}xi8>>"
)
REORDERED = f"""
util.global private @scales = #flow.parameter.named<"model"::"scales"> : {SCALES}
util.func public @reordered(%x: {OPERANDS[0]}, %w: {OPERANDS[1]}) -> {WHOLE} {{
  %g = util.global.load immutable @scales : {SCALES}
  %t = flow.dispatch @reorder::@reorder(%g) : ({SCALES}) -> tensor<{N}x{K // 32}xi8>
  %s = flow.tensor.reshape %t : tensor<{N}x{K // 32}xi8> -> {OPERANDS[2]}
  {PRODUCT}
  util.return %p : {WHOLE}
}}
"""
#: A row of an embedding, which the kernel adds: data say which one.
TABLE = f"tensor<9x{N}xf32>"
LOOKUP = load("t", 1, "tensor<1xi32>")
LOOKUP += load("w", 0, TABLE)
LOOKUP += f"""
      %e = tensor.empty() : {ROW}
      %r = linalg.generic {{indexing_maps = [affine_map<(n) -> (0)>, affine_map<(n) -> (n)>],
          iterator_types = ["parallel"]}} ins(%t : tensor<1xi32>) outs(%e : {ROW}) {{
      ^bb0(%id: i32, %o: f32):
        %at = arith.index_cast %id : i32 to index
        %n = linalg.index 0 : index
        %z = tensor.extract %w[%at, %n] : {TABLE}
        linalg.yield %z : f32
      }} -> {ROW}
      iree_tensor_ext.dispatch.tensor.store %r, %a2, offsets = [0], sizes = [{N}], strides = [1]
        : {ROW} -> {DISPATCH}<writeonly:{ROW}>
"""
EMBEDDED = f"""
util.global private @table = #flow.parameter.named<"model"::"table"> : {TABLE}
util.func public @embedded(%x: {OPERANDS[0]}, %w: {OPERANDS[1]}, %s: {OPERANDS[2]},
    %t: tensor<1xi32>) -> {WHOLE} {{
  %g = util.global.load immutable @table : {TABLE}
  %r = flow.dispatch @lookup::@lookup(%g, %t) : ({TABLE}, tensor<1xi32>) -> {ROW}
  {PRODUCT.replace("%s)", "%s, %r)").replace(f"{OPERANDS[2]})", f"{OPERANDS[2]}, {ROW})")}
  util.return %p : {WHOLE}
}}
"""
PROGRAM = "".join(
    [
        executable("lookup", [TABLE, "tensor<1xi32>", ROW], LOOKUP),
        EMBEDDED,
        executable("reorder", [SCALES, f"tensor<{N}x{K // 32}xi8>"], REORDER),
        REORDERED,
        executable("product", [*OPERANDS, WHOLE], ""),
        executable("bias", [WHOLE, ROW, WHOLE], BIAS),
        executable("gate", [WHOLE, NARROW], GATE),
        executable("sum", [WHOLE, WHOLE, f"tensor<{M}xf32>"], SUM),
        function("alone", PRODUCT, "p", WHOLE),
        function("biased", PRODUCT + BIASED, "q", WHOLE),
        function("gated", PRODUCT + BIASED + GATED, "g", NARROW),
        function("summed", PRODUCT + SUMMED, "t", f"tensor<{M}xf32>"),
        function("returned", PRODUCT + BIASED, "p", WHOLE),
        function("unfused", UNFUSED + BIASED, "q", WHOLE),
        function("unfused_alone", UNFUSED, "p", WHOLE),
    ]
)


@pytest.fixture(scope="module")
def report() -> Report:
    with new_context():
        module = ir.Module.parse(PROGRAM).operation
        return build_report(module, module, {}, target("gfx950"))


def one(report: Report, name: str) -> Matmul:
    (found,) = [matmul for matmul in report.matmuls if matmul.function == name]
    return found


@pytest.mark.parametrize("name", ["alone", "summed", "returned"])
def test_what_does_more_than_finish_is_not_counted(name: str, report: Report) -> None:
    """A sum over rows is another operation, and a result that is wanted itself is finished."""
    found = one(report, name)
    assert found.kernels == 1
    assert found.bytes_moved == found.bytes_minimum == ROWS + WEIGHTS + RESULT


def test_a_bias_behind_the_kernel(report: Report) -> None:
    found = one(report, "biased")
    assert found.kernels == 2
    assert found.bytes_minimum == ROWS + WEIGHTS + RESULT
    assert found.bytes_moved == found.bytes_minimum + 2 * RESULT + 4 * N


def test_a_bias_and_a_gate_behind_the_kernel(report: Report) -> None:
    found = one(report, "gated")
    assert found.kernels == 3
    assert found.bytes_minimum == ROWS + WEIGHTS + HALF
    assert found.bytes_moved == found.bytes_minimum + 4 * RESULT + 4 * N


def test_why_what_follows_is_another_kernel(report: Report) -> None:
    """Said of a contraction of several kernels only: what no kernel computes costs nothing."""
    assert {m.function: m.unfused for m in report.matmuls if m.unfused is not None} == {
        "unfused": WHY,
        "unfused_alone": WHY,
    }
    text = Console(width=200, record=True, file=io.StringIO())
    text.print(render(report, text))
    printed = text.export_text()
    name = one(report, "unfused").name
    assert f"what follows is another kernel: unfused:{name}: {WHY}" in printed
    assert printed.count(WHY) == 1


def test_scales_that_are_reordered_for_the_kernel(report: Report) -> None:
    found = one(report, "reordered")
    assert found.kernels == 2
    assert found.bytes_minimum == ROWS + WEIGHTS + RESULT
    assert found.bytes_moved == found.bytes_minimum + 2 * N * K // 32


def test_an_embedding_is_no_weight_in_another_order(report: Report) -> None:
    assert one(report, "embedded").kernels == 1


#: A kernel that is split by the rows of a call, and another one whose name looks like a part of it.
SPLIT = f"""
stream.executable private @split {{
  stream.executable.export public @split
  builtin.module {{
    func.func @split() attributes {{mxc.cases = {{bounds = array<i64: 16, 64>}}}} {{ return }}
  }}
}}
{executable("split_from_3", [ROW, ROW], "")}
util.func public @f(%x: {ROW}) -> {ROW} {{
  %r = flow.dispatch @split::@split(%x) : ({ROW}) -> {ROW}
  %q = flow.dispatch @split_from_3::@split_from_3(%r) : ({ROW}) -> {ROW}
  util.return %q : {ROW}
}}
"""


def test_kernels_that_are_called_by_another_name() -> None:
    names = ["split", "split_from_16", "split_from_64", "split_from_3"]
    assembly = "".join(
        f"\t.type\t{name},@function\n{name}:\n\tretq\n\t.size\t{name}, .-{name}\n" for name in names
    )
    with new_context():
        module = ir.Module.parse(SPLIT).operation
        found = build_report(module, module, parse_all([assembly]), target("cpu:znver5"))
    assert [(kernel.name, kernel.entry, kernel.from_rows) for kernel in found.kernels] == [
        ("split", "split", 0),
        ("split_from_16", "split", 16),
        ("split_from_64", "split", 64),
        ("split_from_3", "split_from_3", 0),
    ]
    assert [len(found.calls[name]) for name in names] == [1, 1, 1, 1]
