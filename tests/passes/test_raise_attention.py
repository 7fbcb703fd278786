"""Attention that a program writes as separate operations, against numpy.

If it becomes a kernel, results must stay the same. Each form of it has two heads with 32 queries
and keys. The report names the kernel of a form, or the reason why it has none.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.report import Report

Array = NDArray[Any]

#: Number of heads, of queries and of keys, and of elements of a head.
H, T, D = 2, 32, 32
INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)
#: How the body of the scores begins. %x is a score, %c whether a causal mask lets the query see the
#: key, and %p whether the key is not masked at run time.
BODY = """
    %t = linalg.index 1 : index
    %s = linalg.index 2 : index
    %c = arith.cmpi ule, %s, %t : index
    %zero = arith.constant 0.0 : f32
    %p = arith.cmpf oeq, %pad, %zero : f32
    %low = arith.constant {low} : f32
    %inf = arith.constant 0xFF800000 : f32
"""
CHOSEN = """
    %r = arith.select %c, %x, %low : f32
"""
PADDED = """
    %r = arith.select %p, %x, %low : f32
"""
BOTH = """
    %y = arith.select %p, %x, %low : f32
    %r = arith.select %c, %y, %low : f32
"""
ADDED = """
    %m = arith.select %c, %zero, %low : f32
    %y = arith.addf %x, %pad : f32
    %r = arith.addf %y, %m : f32
"""
INFINITE_OUTSIDE = """
    %y = arith.select %p, %x, %low : f32
    %r = arith.select %c, %y, %inf : f32
"""
INFINITE_INSIDE = """
    %y = arith.select %c, %x, %inf : f32
    %r = arith.select %p, %y, %low : f32
"""
CHOSEN_THEN_ADDED = """
    %y = arith.select %c, %x, %low : f32
    %r = arith.addf %y, %pad : f32
"""
PAD_ADDED = """
    %r = arith.addf %x, %pad : f32
"""
PLAIN = """
    %r = arith.addf %x, %zero : f32
"""
LOWERED = """
    %down = arith.constant -20.0 : f32
    %r = arith.addf %x, %down : f32
"""


@dataclass(frozen=True)
class Form:
    """A form in which a program writes attention.

    `body`: what is computed of a score, with the constant `low`; `scores` is the same in numpy.
    `kernel`: the end of the kernel's name; None if attention does not become a kernel, for
    `reason`. `fill`: factor of the keys that are masked at run time; `pad`: their mask.
    """

    body: str
    scores: Callable[[Array, Array, Array], Array]
    kernel: str | None = "_dense_masked"
    low: float = -1e30
    total: float = 0.0
    highest: float = -INF
    products: str = "linalg.fill"
    fill: float = 1.0
    pad: float = -INF
    reason: str = "its maximum or sum starts from something that may change it"


def either(low: float) -> Callable[[Array, Array, Array], Array]:
    return lambda x, c, pad: np.where(c & (pad == 0), x, low)


FORMS = {
    "plain": Form(PLAIN, lambda x, c, pad: x, "_dense"),
    "total_from_one": Form(PLAIN, lambda x, c, pad: x, None, total=1.0),
    "highest_from_lowest": Form(PADDED, lambda x, c, pad: np.where(pad == 0, x, -1e30),
                                highest=LOWEST),
    "highest_from_zero": Form(LOWERED, lambda x, c, pad: x - 20, None, highest=0.0),
    "products_from_constants": Form(CHOSEN, lambda x, c, pad: np.where(c, x, -1e30),
                                    "_dense_causal", products="arith.constant"),
    "causal": Form(CHOSEN, lambda x, c, pad: np.where(c, x, -1e30), "_dense_causal"),
    "left_padding": Form(BOTH, either(-1e30)),
    "left_padding_added": Form(ADDED, lambda x, c, pad: (x + pad) + np.where(c, 0, -3e38),
                               low=-3e38, pad=-3e38),
    "infinite_outside": Form(INFINITE_OUTSIDE,
                             lambda x, c, pad: np.where(c, np.where(pad == 0, x, -1e30), -INF),
                             "_dense_causal_masked"),
    "infinite_inside": Form(INFINITE_INSIDE,
                            lambda x, c, pad: np.where(pad == 0, np.where(c, x, -INF), -1e30)),
    "chosen_then_added": Form(CHOSEN_THEN_ADDED, lambda x, c, pad: np.where(c, x, -1e30) + pad,
                              pad=LOWEST),
    "nan_keys": Form(PADDED, lambda x, c, pad: np.where(pad == 0, x, -1e30), fill=float("nan")),
    "chosen_by_a_number": Form(BOTH, either(-1e4), low=-1e4),
    "chosen_by_a_number_then_added": Form(CHOSEN_THEN_ADDED,
                                          lambda x, c, pad: np.where(c, x, -1e4) + pad, None,
                                          low=-1e4, pad=-1.0,
                                          reason="a mask chooses the score -10000, and another one "
                                                 "adds to scores"),
    "infinite_keys": Form(PADDED, lambda x, c, pad: np.where(pad == 0, x, -INF), low=-INF,
                          fill=INF),
    "nan_keys_added": Form(PAD_ADDED, lambda x, c, pad: x + pad, fill=float("nan")),
}  # fmt: skip


def number(value: float) -> str:
    return f"0x{np.float32(value).view(np.uint32):08X}"


def function(name: str, form: Form) -> str:
    rows, scores, result = (f"tensor<{H}x{T}xf32>", f"tensor<{H}x{T}x{T}xf32>",
                            f"tensor<{H}x{T}x{D}xf32>")  # fmt: skip
    cells, each = "affine_map<(h, t, s) -> (h, t, s)>", "affine_map<(h, t, s) -> (h, t)>"

    def start(value: str, kind: str, written: float, *, how: str = "linalg.fill") -> str:
        if how == "arith.constant":
            return f"{value} = arith.constant dense<{number(written)}> : {kind}\n"
        return (
            f"{value}_n = arith.constant {number(written)} : f32\n"
            f"{value}_e = tensor.empty() : {kind}\n"
            f"{value} = linalg.fill ins({value}_n : f32) outs({value}_e : {kind}) -> {kind}\n"
        )

    def reduced(value: str, of: str, begun: str, by: str) -> str:
        return f"""{value} = linalg.generic {{indexing_maps = [{cells}, {each}],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins({of} : {scores}) outs({begun} : {rows}) {{
  ^bb0(%x: f32, %o: f32):
    %r = {by} %x, %o : f32
    linalg.yield %r : f32
  }} -> {rows}
"""

    def rowwise(value: str, of: str, row: str, body: str) -> str:
        return f"""{value} = linalg.generic {{indexing_maps = [{cells}, {each}, {cells}],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins({of}, {row} : {scores}, {rows}) outs(%empty : {scores}) {{
  ^bb0(%x: f32, %o: f32, %unused: f32):
    {body}
    linalg.yield %r : f32
  }} -> {scores}
"""

    def product(value: str, maps: str, left: tuple[str, str], right: tuple[str, str], kind: str,
                begun: str) -> str:  # fmt: skip
        return f"""{value} = linalg.generic {{indexing_maps = [{maps}],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins({left[0]}, {right[0]} : {left[1]}, {right[1]}) outs({begun} : {kind}) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    %e = arith.mulf %x, %y : f32
    %r = arith.addf %o, %e : f32
    linalg.yield %r : f32
  }} -> {kind}
"""

    def maps(*results: str) -> str:
        return ", ".join(f"affine_map<(a, b, c, d) -> ({each})>" for each in results)

    body = BODY.format(low=number(form.low)) + form.body
    return "".join((
        f"func.func @{name}(%q: {result}, %k: {result}, %v: {result}, %pad: tensor<{T}xf32>)"
        f" -> {result} {{\n  %empty = tensor.empty() : {scores}\n",
        start("%zs", scores, 0.0, how=form.products),
        product("%products", maps("a, b, d", "a, c, d", "a, b, c"), ("%q", result), ("%k", result),
                scores, "%zs"),
        f"""%scores = linalg.generic {{
      indexing_maps = [{cells}, affine_map<(h, t, s) -> (s)>, {cells}],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%products, %pad : {scores}, tensor<{T}xf32>) outs(%empty : {scores}) {{
  ^bb0(%x: f32, %pad_s: f32, %unused: f32):{body.replace("%pad", "%pad_s")}
    linalg.yield %r : f32
  }} -> {scores}
""",
        start("%least", rows, form.highest),
        reduced("%highest", "%scores", "%least", "arith.maximumf"),
        rowwise("%weights", "%scores", "%highest",
                "%d = arith.subf %x, %o : f32\n    %r = math.exp %d : f32"),
        start("%begun", rows, form.total),
        reduced("%total", "%weights", "%begun", "arith.addf"),
        rowwise("%parts", "%weights", "%total", "%r = arith.divf %x, %o : f32"),
        start("%zy", result, 0.0, how=form.products),
        product("%result", maps("a, b, d", "a, d, c", "a, b, c"), ("%parts", scores),
                ("%v", result), result, "%zy"),
        f"return %result : {result}\n}}\n",
    ))  # fmt: skip


def draw(form: Form) -> list[Array]:
    """Draw queries, keys, values and the mask at run time, which masks the first three keys."""
    rng = np.random.default_rng(7)
    queries, keys, values = rng.normal(size=(3, H, T, D)).astype(np.float32)
    pad = np.zeros(T, np.float32)
    pad[:3] = form.pad
    keys[:, :3] *= np.float32(form.fill)
    return [queries * np.float32(D**-0.5), keys, values, pad]


def expected(form: Form, given: list[Array]) -> Array:
    queries, keys, values, pad = given
    with np.errstate(all="ignore"):
        products = np.einsum("htd,hsd->hts", queries, keys)
        seen = np.tril(np.ones((T, T), bool))
        scores = form.scores(products, seen, pad).astype(np.float32).astype(np.float64)
        highest = np.maximum(scores.max(-1, keepdims=True), form.highest)
        weights = np.exp(scores - highest)
        return weights / (weights.sum(-1, keepdims=True) + form.total) @ values.astype(np.float64)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Report]:
    """Compile all forms for this CPU, and return the program with its report."""
    folder: Path = tmp_path_factory.mktemp("forms")
    (folder / "forms.mlir").write_text("".join(function(*each) for each in FORMS.items()))
    made = mxc.compile(folder / "forms.mlir", output=folder / "forms.mxc", listing=False)
    return mxc.load(made.path), Report.from_dict(json.loads((made.path / REPORT).read_text()))


@pytest.mark.parametrize("name", FORMS)
def test_numbers(name: str, compiled: tuple[Any, Report]) -> None:
    """Numbers are right for rows whose keys are all masked too; zeros where the program has NaN."""
    model, report = compiled
    form = FORMS[name]
    given = draw(form)
    (found,) = model.call(name, *given)
    wanted = expected(form, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    kernels = [one.kernel for one in report.operations if one.function == name]
    ours = [re.fullmatch(r"mxc_attention_1x1x32_f32(\w+?)(_v\d)?", one) for one in kernels]
    assert [one[1] for one in ours if one and not one[1].endswith("_merged")] == (
        [] if form.kernel is None else [form.kernel]
    )
    reasons = [one.reason for one in report.matmuls if one.function == name]
    if form.kernel is None:
        assert reasons[1] == f"it is attention in another form: {form.reason}"
