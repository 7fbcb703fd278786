"""Each form in which a frontend may write a scaled contraction: one dispatch, correct results.

All forms are functions of one program, which is normalized and compiled once. Results are
compared with numpy, on elements and scales that ml_dtypes decodes.
"""

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools

from mxc.dialects.context import new_context
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.base import run
from mxc.passes.normalize import NORMALIZE
from mxc.passes.rewriting.rebuild import has_reduction, linalg_operations

Floats = npt.NDArray[np.float32]

#: K is three blocks, so that a scale of the wrong block is noticed; T of E experts are chosen.
M, N, K, KO, E, T = 3, 8, 96, 3, 5, 2

ACC = f"""
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{M}x{N}xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>"""

WEIGHT = f"""
  %b = flow.tensor.bitcast %bytes : tensor<{N}x{KO}x16xi8> -> tensor<{N}x{KO}x32xf4E2M1FN>
  %s = flow.tensor.bitcast %scales : tensor<{N}x{KO}xi8> -> tensor<{N}x{KO}xf8E8M0FNU>"""


#: Flags of iree-compile for this CPU.
CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


def contractions(module: ir.Module) -> list[ScaledContraction | Reason]:
    reductions = [op for op in linalg_operations(module.operation) if has_reduction(op)]
    return [match_scaled_contraction(op) for op in reductions]


def generic(ins: str, maps: str, loops: str, out: str, body: str, result: str) -> str:
    """Return a linalg.generic. `ins`: "%a: type; ..". `loops`: as "p p r". `out`: "%c: type"."""
    values, types = zip(*(item.split(":") for item in ins.split(";")), strict=True)
    kinds = ", ".join({"p": '"parallel"', "r": '"reduction"'}[k] for k in loops.split())
    scalars = ", ".join(f"%i{i}: {t.rstrip('>').split('x')[-1]}" for i, t in enumerate(types))
    end = out.split(":")[1].strip()
    affine = ", ".join(f"affine_map<{m}>" for m in maps.split(";"))
    return f"""
  {result} = linalg.generic {{indexing_maps = [{affine}], iterator_types = [{kinds}]}}
    ins({", ".join(values)} : {", ".join(types)}) outs({out}) {{
  ^bb0({scalars}, %o: {end.rstrip(">").split("x")[-1]}):
    {body}
  }} -> {end}"""


SCALED = """%y = arith.scaling_extf %i0, %i1 : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32"""
SEPARATE = """%i2 = arith.extf %i0 : f4E2M1FN to f32
    %i3 = arith.extf %i1 : f8E8M0FNU to f32
    %y = arith.mulf %i3, %i2 : f32
    linalg.yield %y : f32"""
IN_BF16 = """%y = arith.scaling_extf %i0, %i1 : f4E2M1FN, f8E8M0FNU to bf16
    linalg.yield %y : bf16"""


def dequantize(body: str = SCALED, scale: str = "%s", to: str = "f32") -> str:
    big = scale != "%s"
    scale_type = f"tensor<{N}x{KO}x32xf8E8M0FNU>" if big else f"tensor<{N}x{KO}xf8E8M0FNU>"
    read = "(n, a, b) -> (n, a, b)" if big else "(n, a, b) -> (n, a)"
    return (
        f"\n  %de = tensor.empty() : tensor<{N}x{KO}x32x{to}>"
        + generic(
            f"%b: tensor<{N}x{KO}x32xf4E2M1FN>;{scale}: {scale_type}",
            f"(n, a, b) -> (n, a, b);{read};(n, a, b) -> (n, a, b)",
            "p p p",
            f"%de: tensor<{N}x{KO}x32x{to}>",
            body,
            "%d",
        )
        + f"\n  %w = tensor.collapse_shape %d [[0], [1, 2]] : tensor<{N}x{KO}x32x{to}> "
        f"into tensor<{N}x{K}x{to}>"
    )


def matmul(x: str = "%x", result: str = "%r", of: str = "f32") -> str:
    maps = "affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>"
    return f"""
  {result} = linalg.matmul indexing_maps = [{maps}, affine_map<(m, n, k) -> (m, n)>]
    ins({x}, %w : tensor<{M}x{K}x{of}>, tensor<{N}x{K}x{of}>) outs(%acc : tensor<{M}x{N}xf32>)
    -> tensor<{M}x{N}xf32>"""


BROADCAST = f"""
  %se = tensor.empty() : tensor<{N}x{KO}x32xf8E8M0FNU>
  %sb = linalg.broadcast ins(%s : tensor<{N}x{KO}xf8E8M0FNU>)
    outs(%se : tensor<{N}x{KO}x32xf8E8M0FNU>) dimensions = [2]"""

RANK_TWO = f"""
  %b2 = tensor.collapse_shape %b [[0], [1, 2]]
    : tensor<{N}x{KO}x32xf4E2M1FN> into tensor<{N}x{K}xf4E2M1FN>
  %de = tensor.empty() : tensor<{N}x{K}xf32>""" + generic(
    f"%b2: tensor<{N}x{K}xf4E2M1FN>;%s: tensor<{N}x{KO}xf8E8M0FNU>",
    "(n, k) -> (n, k);(n, k) -> (n, k floordiv 32);(n, k) -> (n, k)",
    "p p",
    f"%de: tensor<{N}x{K}xf32>",
    SCALED,
    "%w",
)

TRANSPOSED = f"""
  %te = tensor.empty() : tensor<{K}x{N}xf32>
  %t = linalg.transpose ins(%w : tensor<{N}x{K}xf32>) outs(%te : tensor<{K}x{N}xf32>)
    permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<{M}x{K}xf32>, tensor<{K}x{N}xf32>)
    outs(%acc : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>"""

#: Dequantized with rank 2, then read as blocks: the reshape must move to the packed weight.
EXPANDED = (
    RANK_TWO
    + f"""
  %w3 = tensor.expand_shape %w [[0], [1, 2]] output_shape [{N}, {KO}, 32]
    : tensor<{N}x{K}xf32> into tensor<{N}x{KO}x32xf32>
  %x3 = tensor.expand_shape %x [[0], [1, 2]] output_shape [{M}, {KO}, 32]
    : tensor<{M}x{K}xf32> into tensor<{M}x{KO}x32xf32>"""
    + generic(
        f"%x3: tensor<{M}x{KO}x32xf32>;%w3: tensor<{N}x{KO}x32xf32>",
        "(m, n, a, b) -> (m, a, b);(m, n, a, b) -> (n, a, b);(m, n, a, b) -> (m, n)",
        "p p r r",
        f"%acc: tensor<{M}x{N}xf32>",
        """%p = arith.mulf %i0, %i1 : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32""",
        "%r",
    )
)

MULTIPLY = """%y = arith.scaling_extf %i1, %i0 : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %y, %i2 : f32
    %q = arith.addf %p, %o : f32
    linalg.yield %q : f32"""

ANY_ORDER = f"""
  %x3 = tensor.expand_shape %x [[0], [1, 2]] output_shape [{M}, {KO}, 32]
    : tensor<{M}x{K}xf32> into tensor<{M}x{KO}x32xf32>""" + generic(
    f"%s: tensor<{N}x{KO}xf8E8M0FNU>;%b: tensor<{N}x{KO}x32xf4E2M1FN>;%x3: tensor<{M}x{KO}x32xf32>",
    "(b, n, m, a) -> (n, a);(b, n, m, a) -> (n, a, b);(b, n, m, a) -> (m, a, b)"
    ";(b, n, m, a) -> (m, n)",
    "r p p r",
    f"%acc: tensor<{M}x{N}xf32>",
    MULTIPLY,
    "%r",
)

WEIGHT_ARGUMENTS = f"%bytes: tensor<{N}x{KO}x16xi8>, %scales: tensor<{N}x{KO}xi8>"
RESULT = f"tensor<{M}x{N}xf32>"


def function(name: str, body: str, x: str = "f32") -> str:
    return f"""
util.func public @{name}(%x: tensor<{M}x{K}x{x}>, {WEIGHT_ARGUMENTS}) -> {RESULT} {{{WEIGHT}{ACC}
{body}
  util.return %r : {RESULT}
}}"""


#: Functions of x [M, K] times the transposed weight [N, K].
FORMS = {
    "dequantized": function("dequantized", dequantize() + matmul()),
    "extended_apart": function("extended_apart", dequantize(SEPARATE) + matmul()),
    "scale_broadcast": function("scale_broadcast", BROADCAST + dequantize(scale="%sb") + matmul()),
    "rank_two": function("rank_two", RANK_TWO + matmul()),
    "transposed": function("transposed", RANK_TWO + TRANSPOSED),
    "expanded": function("expanded", EXPANDED),
    "any_order": function("any_order", ANY_ORDER),
    "in_bf16": function("in_bf16", dequantize(IN_BF16, to="bf16") + matmul(of="bf16"), "bf16"),
}

TWICE = f"""
util.func public @used_twice(%x: tensor<{M}x{K}xf32>, %x2: tensor<{M}x{K}xf32>, {WEIGHT_ARGUMENTS})
    -> ({RESULT}, {RESULT}) {{{WEIGHT}{ACC}
{dequantize()}{matmul()}{matmul("%x2", "%r2")}
  util.return %r, %r2 : {RESULT}, {RESULT}
}}"""


def gather(source: str, of: str, rows: int, rest: str, result: str) -> str:
    """Return a gather: %`result` has the rows %ids of %`source` [rows, rest..]."""
    return f"""
  %{result}_init = tensor.empty() : tensor<{T}x{rest}x{of}>
  %{result} = iree_linalg_ext.gather dimension_map = [0]
    ins(%{source}, %ids : tensor<{rows}x{rest}x{of}>, tensor<{T}xi32>)
    outs(%{result}_init : tensor<{T}x{rest}x{of}>) -> tensor<{T}x{rest}x{of}>"""


def experts(rows: int, packed: str, scales: str) -> str:
    """Return operations that dequantize %w [rows, N, K] from bytes."""
    return (
        f"""
  %b = flow.tensor.bitcast %{packed}
    : tensor<{rows}x{N}x{KO}x16xi8> -> tensor<{rows}x{N}x{KO}x32xf4E2M1FN>
  %s = flow.tensor.bitcast %{scales}
    : tensor<{rows}x{N}x{KO}xi8> -> tensor<{rows}x{N}x{KO}xf8E8M0FNU>
  %de = tensor.empty() : tensor<{rows}x{N}x{KO}x32xf32>"""
        + generic(
            f"%b: tensor<{rows}x{N}x{KO}x32xf4E2M1FN>;%s: tensor<{rows}x{N}x{KO}xf8E8M0FNU>",
            "(t, n, a, b) -> (t, n, a, b);(t, n, a, b) -> (t, n, a);(t, n, a, b) -> (t, n, a, b)",
            "p p p p",
            f"%de: tensor<{rows}x{N}x{KO}x32xf32>",
            SCALED,
            "%d",
        )
        + f"""
  %w = tensor.collapse_shape %d [[0], [1], [2, 3]]
    : tensor<{rows}x{N}x{KO}x32xf32> into tensor<{rows}x{N}x{K}xf32>"""
    )


def batch_matmul(name: str, weights: str, w: str) -> str:
    return f"""
util.func public @{name}(%x: tensor<{T}x{M}x{K}xf32>, %bytes: tensor<{E}x{N}x{KO}x16xi8>,
    %scales: tensor<{E}x{N}x{KO}xi8>, %ids: tensor<{T}xi32>) -> tensor<{T}x{M}x{N}xf32> {{{weights}
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{T}x{M}x{N}xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<{T}x{M}x{N}xf32>) -> tensor<{T}x{M}x{N}xf32>
  %te = tensor.empty() : tensor<{T}x{K}x{N}xf32>
  %t = linalg.transpose ins(%{w} : tensor<{T}x{N}x{K}xf32>) outs(%te : tensor<{T}x{K}x{N}xf32>)
    permutation = [0, 2, 1]
  %r = linalg.batch_matmul ins(%x, %t : tensor<{T}x{M}x{K}xf32>, tensor<{T}x{K}x{N}xf32>)
    outs(%acc : tensor<{T}x{M}x{N}xf32>) -> tensor<{T}x{M}x{N}xf32>
  util.return %r : tensor<{T}x{M}x{N}xf32>
}}"""


#: Products by chosen experts: gathered as bytes, or gathered after all are dequantized.
GATHERED = {
    "gathered_bytes": batch_matmul(
        "gathered_bytes",
        gather("bytes", "i8", E, f"{N}x{KO}x16", "bg")
        + gather("scales", "i8", E, f"{N}x{KO}", "sg")
        + experts(T, "bg", "sg"),
        "w",
    ),
    "gathered_floats": batch_matmul(
        "gathered_floats",
        experts(E, "bytes", "scales") + gather("w", "f32", E, f"{N}x{K}", "wg"),
        "wg",
    ),
}

#: Both sides packed, each dequantized on its own.
BOTH = (
    f"""
util.func public @both(%xb: tensor<{M}x{KO}x16xi8>, %xs8: tensor<{M}x{KO}xi8>, {WEIGHT_ARGUMENTS})
    -> {RESULT} {{{WEIGHT}{ACC}
  %a = flow.tensor.bitcast %xb : tensor<{M}x{KO}x16xi8> -> tensor<{M}x{KO}x32xf4E2M1FN>
  %as = flow.tensor.bitcast %xs8 : tensor<{M}x{KO}xi8> -> tensor<{M}x{KO}xf8E8M0FNU>
  %ae = tensor.empty() : tensor<{M}x{KO}x32xf32>"""
    + generic(
        f"%a: tensor<{M}x{KO}x32xf4E2M1FN>;%as: tensor<{M}x{KO}xf8E8M0FNU>",
        "(n, a, b) -> (n, a, b);(n, a, b) -> (n, a);(n, a, b) -> (n, a, b)",
        "p p p",
        f"%ae: tensor<{M}x{KO}x32xf32>",
        SCALED,
        "%x3",
    )
    + f"""
  %x = tensor.collapse_shape %x3 [[0], [1, 2]]
    : tensor<{M}x{KO}x32xf32> into tensor<{M}x{K}xf32>
{dequantize()}{matmul()}
  util.return %r : {RESULT}
}}"""
)

#: One token: a vector times the transposed weight.
VECTOR = f"""
util.func public @vector(%x: tensor<{K}xf32>, {WEIGHT_ARGUMENTS}) -> tensor<{N}xf32> {{{WEIGHT}
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{N}xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<{N}xf32>) -> tensor<{N}xf32>
{dequantize()}
  %r = linalg.matvec ins(%w, %x : tensor<{N}x{K}xf32>, tensor<{K}xf32>)
    outs(%acc : tensor<{N}xf32>) -> tensor<{N}xf32>
  util.return %r : tensor<{N}xf32>
}}"""

#: Number of dispatches of each function: one for each contraction, which includes the gathers.
DISPATCHES = dict.fromkeys([*FORMS, *GATHERED, "both", "vector"], 1) | {"used_twice": 2}


def test_a_single_block() -> None:
    """K is one block: nothing divides the loop, and still it is (ko, kb)."""
    with new_context():
        text = "\n".join(FORMS.values()).replace(f"{K}x", "32x").replace(f"x{KO}x", "x1x")
        module = ir.Module.parse(text.replace(f", {KO}, 32]", ", 1, 32]"))
        run(NORMALIZE, module)
        found = contractions(module)
        sizes = [(c.k, c.block) for c in found if not isinstance(c, Reason) and c.is_canonical]
        assert sizes == [(32, 32)] * len(FORMS)


@pytest.fixture(scope="module")
def normalized() -> str:
    with new_context():
        module = ir.Module.parse(
            "\n".join([*FORMS.values(), TWICE, *GATHERED.values(), BOTH, VECTOR])
        )
        run(NORMALIZE, module)
        return str(module)


@pytest.fixture(scope="module")
def program(normalized: str) -> rt.VmModule:
    blob = tools.compile_str(normalized, extra_args=[*CPU, "--iree-llvmcpu-target-cpu=host"])
    config = rt.Config("local-task")
    context = rt.SystemContext(config=config)
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    return context.modules.module


def random_packed(*shape: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], Floats]:
    """Draw mxfp4: bytes [.., KO, 16], scales [.., KO], and their values [.., K]."""
    rng = np.random.default_rng(list(shape))
    codes = rng.integers(0, 16, (*shape, KO, 32), dtype=np.uint8)
    # From 2^-5 to 2^3: products with small integers are multiples of 2^-6, and sums below 2^16.
    scales = rng.integers(122, 131, (*shape, KO), dtype=np.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * factors[..., None]
    return packed.view(np.int8), scales.view(np.int8), values.reshape(*shape, K)


def activations(*shape: int) -> Floats:
    """Draw small integers, whose products with elements, and sums of 96 products, are exact."""
    rng = np.random.default_rng(7)
    return rng.integers(-8, 9, shape).astype(np.float32)


def test_all_are_canonical(normalized: str) -> None:
    with new_context():
        module = ir.Module.parse(normalized)
        found = contractions(module)
    sizes = [(c.is_canonical, c.k, c.block) for c in found if not isinstance(c, Reason)]
    assert sizes == [(True, K, 32)] * (len(DISPATCHES) + 1)
    assert "reason = " not in normalized


def test_one_dispatch_and_nothing_materialised(normalized: str) -> None:
    text = tools.compile_str(normalized, extra_args=[*CPU, "--compile-to=flow"]).decode()
    counts = dict.fromkeys(DISPATCHES, 0)
    name = ""
    for line in text.splitlines():
        if "util.func public @" in line:
            name = line.split("@")[1].split("(")[0]
        if "flow.dispatch @" in line:
            counts[name] += 1
            result = line.rsplit("->", 1)[1]
            assert f"{N}x{K}x" not in result, line
            assert f"{KO}x32x" not in result, line
    assert counts == DISPATCHES


@pytest.mark.parametrize("form", FORMS)
def test_form(program: rt.VmModule, form: str) -> None:
    x, (packed, scales, w) = activations(M, K), random_packed(N)
    given = x.astype(ml_dtypes.bfloat16) if form == "in_bf16" else x
    np.testing.assert_array_equal(program[form](given, packed, scales).to_host(), x @ w.T)


def test_used_twice(program: rt.VmModule) -> None:
    x, (packed, scales, w) = activations(M, K), random_packed(N)
    first, second = program["used_twice"](x, 2 * x, packed, scales)
    np.testing.assert_array_equal(first.to_host(), x @ w.T)
    np.testing.assert_array_equal(second.to_host(), 2 * x @ w.T)


@pytest.mark.parametrize("form", GATHERED)
def test_gathered(program: rt.VmModule, form: str) -> None:
    x, (packed, scales, w) = activations(T, M, K), random_packed(E, N)
    ids = np.array([4, 1], np.int32)
    result = program[form](x, packed, scales, ids).to_host()
    np.testing.assert_array_equal(result, x @ w[ids].transpose(0, 2, 1))


def test_both_sides(program: rt.VmModule) -> None:
    (packed, scales, w), (xp, xs, x) = random_packed(N), random_packed(M)
    result = program["both"](xp, xs, packed, scales).to_host()
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(
        result, exact, rtol=0, atol=K * 2**-23 * np.abs(x).max() * np.abs(w).max()
    )


def test_vector(program: rt.VmModule) -> None:
    x, (packed, scales, w) = activations(K), random_packed(N)
    np.testing.assert_array_equal(program["vector"](x, packed, scales).to_host(), w @ x)
