"""Parts of ordinary models as MLIR, for the stock compiler, with their results in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
    "i8": np.int8,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, with its result in numpy.

    text: a module with the function main. inputs: shapes and MLIR types of its arguments. wanted:
    computes its one result from the arguments, as float64. bound: the largest difference that is
    right, over the largest magnitude of the result.
    """

    name: str
    text: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    wanted: Callable[..., Any]
    bound: float = 2.0**-15


def tensor(shape: tuple[int, ...], kind: str) -> str:
    """Return a tensor type as MLIR writes it."""
    return f"tensor<{'x'.join(map(str, shape))}{'x' if shape else ''}{kind}>"


def _program(
    inputs: tuple[tuple[tuple[int, ...], str], ...], out: tuple[tuple[int, ...], str], body: str
) -> str:
    arguments = ", ".join(f"%a{n}: {tensor(*each)}" for n, each in enumerate(inputs))
    return f"func.func @main({arguments}) -> {tensor(*out)} {{\n{body}\n}}\n"


def _stable(
    name: str,
    inputs: tuple[tuple[tuple[int, ...], str], ...],
    out: tuple[tuple[int, ...], str],
    body: str,
    wanted: Callable[..., Any],
    **more: Any,
) -> Case:
    return Case(name=name, text=_program(inputs, out, body), inputs=inputs, wanted=wanted, **more)


#: Elementwise operations by StableHLO's name, and the function in numpy.
UNARY: dict[str, Callable[[Any], Any]] = {
    "exponential": np.exp,
    "tanh": np.tanh,
    "logistic": lambda a: 1 / (1 + np.exp(-a)),
    "sqrt": lambda a: np.sqrt(np.abs(a)),
    "rsqrt": lambda a: 1 / np.sqrt(np.abs(a)),
    "log": lambda a: np.log(np.abs(a)),
    "sine": np.sin,
    "cosine": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "cbrt": np.cbrt,
    "log_plus_one": lambda a: np.log1p(np.abs(a)),
    "exponential_minus_one": np.expm1,
    "sign": np.sign,
}
#: Operations that are applied to the magnitude of the argument.
_OF_SIZE = ("sqrt", "rsqrt", "log", "log_plus_one")
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "subtract": np.subtract,
    "atan2": np.arctan2,
}
#: Reductions: the initial value, and the function in numpy.
REDUCED: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("0.0", np.sum),
    "maximum": ("0xFF800000", np.max),
    "minimum": ("0x7F800000", np.min),
    "multiply": ("1.0", np.prod),
}


def _elementwise() -> Iterator[Case]:
    shape = (7, 33)
    for name, function in UNARY.items():
        value, first = "%a0", ""
        kind = tensor(shape, "f32")
        if name in _OF_SIZE:
            first, value = f"  %p = stablehlo.abs %a0 : {kind}\n", "%p"
        body = f"{first}  %r = stablehlo.{name} {value} : {kind}\n  return %r : {kind}"
        yield _stable(name, ((shape, "f32"),), (shape, "f32"), body, function)
    for name, pair in BINARY.items():
        for kind in ("f32", "f16") if name in ("add", "multiply", "maximum") else ("f32",):
            full = tensor(shape, kind)
            body = f"  %r = stablehlo.{name} %a0, %a1 : {full}\n  return %r : {full}"
            inputs = ((shape, kind), (shape, kind))
            bound = 2.0**-15 if kind == "f32" else 2.0**-9
            yield _stable(f"{name} {kind}", inputs, (shape, kind), body, pair, bound=bound)
    for kind, out in (("f32", "bf16"), ("f32", "f16"), ("bf16", "f32"), ("i32", "f32"),
                      ("f16", "f32"), ("i8", "f32"), ("f32", "i32")):  # fmt: skip
        types = tensor(shape, kind), tensor(shape, out)
        body = (
            f"  %r = stablehlo.convert %a0 : ({types[0]}) -> {types[1]}\n  return %r : {types[1]}"
        )
        function = np.trunc if out == "i32" else np.positive
        bound = {"bf16": 2.0**-8, "f16": 2.0**-10}.get(out, 0.0)
        yield _stable(
            f"{kind} to {out}", ((shape, kind),), (shape, out), body, function, bound=bound
        )


def _reductions() -> Iterator[Case]:
    for name, (start, function) in REDUCED.items():
        for shape, axis in (((16, 200), 1), ((130, 24), 0), ((3, 5, 64), 2)):
            out = tuple(size for n, size in enumerate(shape) if n != axis)
            full, less = tensor(shape, "f32"), tensor(out, "f32")
            body = f"""  %z = stablehlo.constant dense<{start}> : tensor<f32>
  %r = stablehlo.reduce(%a0 init: %z) applies stablehlo.{name} across dimensions = [{axis}]
    : ({full}, tensor<f32>) -> {less}
  return %r : {less}"""
            yield _stable(
                f"{name} of axis {axis} of {'x'.join(map(str, shape))}",
                ((shape, "f32"),),
                (out, "f32"),
                body,
                lambda a, axis=axis, function=function: function(a, axis=axis),
            )


def _softmax(shape: tuple[int, int]) -> Case:
    full, less = tensor(shape, "f32"), tensor(shape[:1], "f32")

    def wanted(a: Any) -> Any:
        e = np.exp(a - a.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    body = f"""  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%a0 init: %n) applies stablehlo.maximum across dimensions = [1]
    : ({full}, tensor<f32>) -> {less}
  %w = stablehlo.broadcast_in_dim %m, dims = [0] : ({less}) -> {full}
  %d = stablehlo.subtract %a0, %w : {full}
  %e = stablehlo.exponential %d : {full}
  %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
    : ({full}, tensor<f32>) -> {less}
  %t = stablehlo.broadcast_in_dim %s, dims = [0] : ({less}) -> {full}
  %r = stablehlo.divide %e, %t : {full}
  return %r : {full}"""
    name = f"softmax {'x'.join(map(str, shape))}"
    return _stable(name, ((shape, "f32"),), (shape, "f32"), body, wanted)


def _product(m: int, n: int, k: int, kind: str, out: str, *, relu: bool = False) -> Case:
    types = tensor((m, k), kind), tensor((k, n), kind), tensor((m, n), out)
    last = f"  %z = stablehlo.constant dense<0.0> : {types[2]}\n" if relu else ""
    last += f"  %q = stablehlo.maximum %r, %z : {types[2]}\n" if relu else ""
    body = f"""  %r = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0]
    : ({types[0]}, {types[1]}) -> {types[2]}
{last}  return {"%q" if relu else "%r"} : {types[2]}"""

    def wanted(a: Any, b: Any) -> Any:
        return np.maximum(a @ b, 0) if relu else a @ b

    name = f"product {m}x{n}x{k} {kind} to {out}" + (", relu" if relu else "")
    inputs = (((m, k), kind), ((k, n), kind))
    bounds = {"f32": 2.0**-15, "i32": 0.0}
    bound = bounds.get(out, 2.0**-6)
    return _stable(name, inputs, ((m, n), out), body, wanted, bound=bound)


def _batched(kind: str) -> Case:
    types = tensor((3, 17, 40), kind), tensor((3, 40, 24), kind), tensor((3, 17, 24), "f32")
    body = f"""  %r = stablehlo.dot_general %a0, %a1, batching_dims = [0] x [0],
    contracting_dims = [2] x [1] : ({types[0]}, {types[1]}) -> {types[2]}
  return %r : {types[2]}"""
    inputs = (((3, 17, 40), kind), ((3, 40, 24), kind))
    return _stable(f"batched product {kind}", inputs, ((3, 17, 24), "f32"), body, np.matmul)


def _mlp(m: int, k: int, n: int) -> Case:
    x, up, down, h = (tensor(s, "f32") for s in ((m, k), (k, n), (n, k), (m, n)))
    body = f"""  %u = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0]
    : ({x}, {up}) -> {h}
  %g = stablehlo.logistic %u : {h}
  %s = stablehlo.multiply %u, %g : {h}
  %d = stablehlo.dot_general %s, %a2, contracting_dims = [1] x [0] : ({h}, {down}) -> {x}
  %r = stablehlo.add %d, %a0 : {x}
  return %r : {x}"""

    def wanted(a: Any, b: Any, c: Any) -> Any:
        u = a @ b
        return (u / (1 + np.exp(-u))) @ c + a

    inputs = (((m, k), "f32"), ((k, n), "f32"), ((n, k), "f32"))
    return _stable(f"mlp {m}x{k}x{n}", inputs, ((m, k), "f32"), body, wanted)


def _convolution(kind: str, channels: int, filters: int, stride: int) -> Case:
    size = 10
    left = (size - 3) // stride + 1
    types = tensor((1, size, size, channels), kind), tensor((3, 3, channels, filters), kind)
    out = (1, left, left, filters)
    body = f"""  %r = stablehlo.convolution(%a0, %a1)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [{stride}, {stride}]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : ({types[0]}, {types[1]}) -> {tensor(out, "f32")}
  return %r : {tensor(out, "f32")}"""

    def wanted(a: Any, b: Any) -> Any:
        found = np.zeros(out)
        for y in range(left):
            for x in range(left):
                part = a[0, y * stride : y * stride + 3, x * stride : x * stride + 3]
                found[0, y, x] = np.tensordot(part, b, 3)
        return found

    inputs = (((1, size, size, channels), kind), ((3, 3, channels, filters), kind))
    name = f"convolution {kind} {channels} to {filters}, stride {stride}"
    return _stable(name, inputs, (out, "f32"), body, wanted)


def _moves() -> Iterator[Case]:
    for kind in ("f32", "f16", "i8"):
        a, b = tensor((24, 70), kind), tensor((70, 24), kind)
        body = f"  %r = stablehlo.transpose %a0, dims = [1, 0] : ({a}) -> {b}\n  return %r : {b}"
        yield _stable(
            f"transpose {kind}",
            (((24, 70), kind),),
            ((70, 24), kind),
            body,
            np.transpose,
            bound=0.0,
        )
    a, i, out = tensor((50, 32), "f32"), tensor((9, 1), "i32"), tensor((9, 32), "f32")
    body = f"""  %r = "stablehlo.gather"(%a0, %a1) {{slice_sizes = array<i64: 1, 32>,
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
      start_index_map = [0], index_vector_dim = 1>}} : ({a}, {i}) -> {out}
  return %r : {out}"""
    yield _stable("embedding", (((50, 32), "f32"), ((9, 1), "i32")), ((9, 32), "f32"), body,
                  lambda a, i: a[i.astype(int)[:, 0]], bound=0.0)  # fmt: skip
    a, b, out = tensor((6, 20), "f32"), tensor((6, 11), "f32"), tensor((6, 31), "f32")
    body = (
        f"  %r = stablehlo.concatenate %a0, %a1, dim = 1 : ({a}, {b}) -> {out}\n  return %r : {out}"
    )
    yield _stable("concatenate", (((6, 20), "f32"), ((6, 11), "f32")), ((6, 31), "f32"), body,
                  lambda a, b: np.concatenate([a, b], axis=1), bound=0.0)  # fmt: skip


def _norm(m: int, n: int) -> Case:
    full, less = tensor((m, n), "f32"), tensor((m,), "f32")
    body = f"""  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<{float(n)}> : {less}
  %e = stablehlo.constant dense<1.0e-5> : {less}
  %q = stablehlo.multiply %a0, %a0 : {full}
  %s = stablehlo.reduce(%q init: %z) applies stablehlo.add across dimensions = [1]
    : ({full}, tensor<f32>) -> {less}
  %d = stablehlo.divide %s, %n : {less}
  %p = stablehlo.add %d, %e : {less}
  %i = stablehlo.rsqrt %p : {less}
  %w = stablehlo.broadcast_in_dim %i, dims = [0] : ({less}) -> {full}
  %v = stablehlo.broadcast_in_dim %a1, dims = [1] : ({tensor((n,), "f32")}) -> {full}
  %t = stablehlo.multiply %a0, %w : {full}
  %r = stablehlo.multiply %t, %v : {full}
  return %r : {full}"""

    def wanted(a: Any, b: Any) -> Any:
        return a / np.sqrt((a**2).mean(axis=1, keepdims=True) + 1e-5) * b

    inputs = (((m, n), "f32"), ((n,), "f32"))
    return _stable(f"rms norm {m}x{n}", inputs, ((m, n), "f32"), body, wanted)


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _elementwise()
    yield from _reductions()
    for shape in ((4, 64), (33, 100), (2, 1500), (1, 4096)):
        yield _softmax(shape)
    for m, n, k in ((16, 16, 16), (33, 50, 70), (128, 64, 96), (1, 64, 128), (64, 1, 64)):
        yield _product(m, n, k, "f32", "f32")
    for kind in ("f16", "bf16"):
        for m, n, k in ((64, 64, 64), (20, 36, 100), (1, 128, 64)):
            yield _product(m, n, k, kind, "f32")
        yield _product(64, 64, 64, kind, kind)
    yield _product(32, 32, 64, "i8", "i32")
    yield _product(64, 48, 64, "f32", "f32", relu=True)
    for kind in ("f32", "f16"):
        yield _batched(kind)
    for sizes in ((1, 64, 128), (17, 32, 96), (64, 64, 64)):
        yield _mlp(*sizes)
    for kind, channels, filters, stride in (("f32", 3, 8, 1), ("f16", 16, 16, 1),
                                            ("f32", 4, 6, 2), ("f16", 32, 32, 2)):  # fmt: skip
        yield _convolution(kind, channels, filters, stride)
    yield from _moves()
    for m, n in ((1, 256), (9, 130), (64, 64)):
        yield _norm(m, n)
