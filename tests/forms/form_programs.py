"""Ways in which programs from elsewhere write one product of a block format, as MLIR text.

    y [M, N] = x [M, K] times the transpose of w [N, K],   w = element * 2^(scale - 127)

A `Form` names how elements are decoded, how scales are, how scales meet elements, in which type,
and which operation contracts. It is a function over %x, %bytes [N, K / 2] and %scales [N, K / 32].
"""

from dataclasses import dataclass

from tests.forms.form_weights import BYTES, ELEMENTS, KO, SCALES, K, M, N, out, parallel


@dataclass(frozen=True)
class Form:
    """One spelling. `elements`, `scales`, `meet`, `contract`: keys of the tables below."""

    elements: str = "typed"
    scales: str = "typed"
    meet: str = "floordiv"
    kind: str = "f32"
    contract: str = "transpose_b"

    @property
    def name(self) -> str:
        """Name of the function."""
        return "_".join((self.elements, self.scales, self.meet, self.kind, self.contract))


def mulf(kind: str) -> str:
    return f"%p = arith.mulf %i0, %i1 : {kind}\n    linalg.yield %p : {kind}"


def by_floordiv(kind: str) -> str:
    return parallel(
        f"%e : tensor<{N}x{K}x{kind}> : n, k", f"%s : tensor<{N}x{KO}x{kind}> : n, k floordiv 32",
        out=out(kind), result="%w", body=mulf(kind),
    )  # fmt: skip


def blocks(kind: str, scale: str, at: str) -> str:
    """Elements in blocks, times what has the scales."""
    three = f"tensor<{N}x{KO}x32x{kind}>"
    return f"""
  %e3 = tensor.expand_shape %e [[0], [1, 2]] output_shape [{N}, {KO}, 32]
    : tensor<{N}x{K}x{kind}> into {three}""" + parallel(
        f"%e3 : {three} : n, o, b", f"{scale} : {at}", out=f"{three} : n, o, b", result="%w3",
        body=mulf(kind),
    ) + f"""
  %w = tensor.collapse_shape %w3 [[0], [1, 2]] : {three} into tensor<{N}x{K}x{kind}>"""  # fmt: skip


def by_expand(kind: str) -> str:
    one = f"tensor<{N}x{KO}x1x{kind}>"
    return f"""
  %s1 = tensor.expand_shape %s [[0], [1, 2]] output_shape [{N}, {KO}, 1]
    : tensor<{N}x{KO}x{kind}> into {one}""" + blocks(kind, f"%s1 : {one}", "n, o, 0")


def by_broadcast(kind: str) -> str:
    three = f"tensor<{N}x{KO}x32x{kind}>"
    return f"""
  %s0 = tensor.empty() : {three}
  %s3 = linalg.broadcast ins(%s : tensor<{N}x{KO}x{kind}>) outs(%s0 : {three}) dimensions = [2]
  %big = tensor.collapse_shape %s3 [[0], [1, 2]] : {three} into tensor<{N}x{K}x{kind}>
  %w = arith.mulf %e, %big : tensor<{N}x{K}x{kind}>"""


MEET = {
    "floordiv": by_floordiv,
    "blocks": lambda kind: blocks(kind, f"%s : tensor<{N}x{KO}x{kind}>", "n, o"),
    "expand": by_expand,
    "broadcast": by_broadcast,
}

W_MAPS = (
    "[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, "
    "affine_map<(m, n, k) -> (m, n)>]"
)


def types(kind: str) -> tuple[str, str, str]:
    return f"tensor<{M}x{K}x{kind}>", f"tensor<{N}x{K}x{kind}>", f"tensor<{M}x{N}xf32>"


def transpose_b(kind: str) -> str:
    x, w, y = types(kind)
    return f"""
  %y = linalg.matmul indexing_maps = {W_MAPS} ins(%x, %w : {x}, {w}) outs(%acc : {y}) -> {y}"""


def transposed(kind: str) -> str:
    x, w, y = types(kind)
    t = f"tensor<{K}x{N}x{kind}>"
    return f"""
  %t0 = tensor.empty() : {t}
  %t = linalg.transpose ins(%w : {w}) outs(%t0 : {t}) permutation = [1, 0]
  %y = linalg.matmul ins(%x, %t : {x}, {t}) outs(%acc : {y}) -> {y}"""


def contract(kind: str) -> str:
    x, w, y = types(kind)
    return f"""
  %y = linalg.contract indexing_maps = {W_MAPS} ins(%x, %w : {x}, {w}) outs(%acc : {y}) -> {y}"""


def generic(kind: str) -> str:
    x, w, y = types(kind)
    widen = "" if kind == "f32" else f"""
    %c = arith.extf %a : {kind} to f32
    %d = arith.extf %b : {kind} to f32"""  # fmt: skip
    a, b = ("%a", "%b") if kind == "f32" else ("%c", "%d")
    return f"""
  %y = linalg.generic {{indexing_maps = {W_MAPS},
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %w : {x}, {w}) outs(%acc : {y}) {{
  ^bb0(%a: {kind}, %b: {kind}, %o: f32):{widen}
    %p = arith.mulf {a}, {b} : f32
    %q = arith.addf %p, %o : f32
    linalg.yield %q : f32
  }} -> {y}"""


def in_body(kind: str) -> str:
    """Elements and scales meet in the body of the contraction: (x * element) * scale."""
    x, w, y = types("f32")
    s = f"tensor<{N}x{KO}xf32>"
    return f"""
  %y = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>,
      affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %e, %s : {x}, {w}, {s}) outs(%acc : {y}) {{
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %q = arith.mulf %p, %c : f32
    %r = arith.addf %o, %q : f32
    linalg.yield %r : f32
  }} -> {y}"""


def by_rows(kind: str) -> str:
    """A product of the first row by linalg.vecmat, of the others by a matrix of three rows."""
    one, t = f"tensor<{K}x{kind}>", f"tensor<{K}x{N}x{kind}>"
    return f"""
  %x1 = tensor.extract_slice %x[0, 0] [1, {K}] [1, 1] : {types(kind)[0]} to {one}
  %t0 = tensor.empty() : {t}
  %t = linalg.transpose ins(%w : {types(kind)[1]}) outs(%t0 : {t}) permutation = [1, 0]
  %z1 = arith.constant dense<0.0> : tensor<{N}xf32>
  %y = linalg.vecmat ins(%x1, %t : {one}, {t}) outs(%z1 : tensor<{N}xf32>) -> tensor<{N}xf32>"""


def matvec(kind: str) -> str:
    one = f"tensor<{K}x{kind}>"
    return f"""
  %x1 = tensor.extract_slice %x[0, 0] [1, {K}] [1, 1] : {types(kind)[0]} to {one}
  %z1 = arith.constant dense<0.0> : tensor<{N}xf32>
  %y = linalg.matvec ins(%w, %x1 : {types(kind)[1]}, {one}) outs(%z1 : tensor<{N}xf32>)
    -> tensor<{N}xf32>"""


def weight_first(kind: str) -> str:
    x, w, _ = types(kind)
    t, y = f"tensor<{K}x{M}x{kind}>", f"tensor<{N}x{M}xf32>"
    return f"""
  %t0 = tensor.empty() : {t}
  %t = linalg.transpose ins(%x : {x}) outs(%t0 : {t}) permutation = [1, 0]
  %z1 = arith.constant dense<0.0> : {y}
  %y = linalg.matmul ins(%w, %t : {w}, {t}) outs(%z1 : {y}) -> {y}"""


def weight_first_relu(kind: str) -> str:
    """What follows is computed in the kernel, before the result is transposed."""
    y = f"tensor<{N}x{M}xf32>"
    product = weight_first(kind).replace("%y =", "%y1 =")
    return f"{product}\n  %y = arith.maximumf %y1, %z1 : {y}"


CONTRACT = {
    "transpose_b": transpose_b,
    "transposed": transposed,
    "contract": contract,
    "generic": generic,
    "in_body": in_body,
    "vecmat": by_rows,
    "matvec": matvec,
    "weight_first": weight_first,
    "weight_first_relu": weight_first_relu,
}
#: Contractions of the first row alone.
ONE_ROW = ("vecmat", "matvec")
#: Those whose result is [N, M].
TRANSPOSED = ("weight_first", "weight_first_relu")


def function(form: Form) -> str:
    """The function of a form."""
    x, _, y = types(form.kind)
    result = f"tensor<{N}xf32>" if form.contract in ONE_ROW else y
    result = f"tensor<{N}x{M}xf32>" if form.contract in TRANSPOSED else result
    meet = "" if form.contract == "in_body" else MEET[form.meet](form.kind)
    return f"""
func.func @{form.name}(%x: {x}, {BYTES.replace(" :", ":")}, %scales: tensor<{N}x{KO}xi8>)
    -> {result} {{
  %acc = arith.constant dense<0.0> : {y}{ELEMENTS[form.elements](form.kind)}\
{SCALES[form.scales](form.kind)}{meet}{CONTRACT[form.contract](form.kind)}
  return %y : {result}
}}"""
