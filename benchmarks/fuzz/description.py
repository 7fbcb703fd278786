"""Descriptions of programs with a scaled contraction, composed of pieces.

A description defines a program completely: mlir.py writes it as a module, and reference.py computes
it in numpy, independently of each other.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

#: Element type, bits per element, scale type and elements per scale of each format of a side.
FORMATS = {
    "mxfp4": ("f4E2M1FN", 4, "f8E8M0FNU", 32),
    "mxfp6e2m3": ("f6E2M3FN", 6, "f8E8M0FNU", 32),
    "mxfp6e3m2": ("f6E3M2FN", 6, "f8E8M0FNU", 32),
    "mxfp8e4m3": ("f8E4M3FN", 8, "f8E8M0FNU", 32),
    "mxfp8e5m2": ("f8E5M2", 8, "f8E8M0FNU", 32),
    "mxint8": ("i8", 8, "f8E8M0FNU", 32),
    "nvfp4": ("f4E2M1FN", 4, "f8E4M3FN", 16),
    "fp8": ("f8E4M3FN", 8, "f32", 32),
}
FLOATS = ("f32", "bf16", "f16")

#: How elements become floats: a cast of the element type, or a table of the values of nibbles:
#: "lookup": low nibble first, "high": high nibble first, "concat": both nibbles computed apart and
#: interleaved, "halves": the low nibbles are the first half of k.
ELEMENTS = ("cast", "lookup", "high", "concat", "halves")
#: How scales become floats. "shift": the byte is shifted to the exponent of an f32.
FACTORS = ("scaling_extf", "extf", "exp2", "powf", "fpowi", "shift")
#: How scales reach the elements. "floordiv": read at k floordiv block, "blocks": k is two loops,
#: "unit": the same, and scales have an additional dimension of 1. "broadcast", "copy": scales are
#: first repeated for each element, by linalg.broadcast or by linalg.generic.
BROADCASTS = ("floordiv", "blocks", "unit", "broadcast", "copy")
#: Where a side is dequantized. "inline": in the body of the contraction, "fused": in one operation,
#: "stepwise": in an operation for each step, "late": the same, but scales are widened after they
#: are broadcast, "whole": by arithmetic on whole tensors.
STYLES = ("inline", "fused", "stepwise", "late", "whole")
#: The type of the product of element and scale, and after ">" the type to which it is rounded.
KINDS = ("f32", "bf16", "f32>bf16", "f32>f16", "f16")
#: Order of the dimensions of elements, or of scales: k last, or k first.
LAYOUTS = ("nk", "kn")
#: Operations of linalg. "transposed" is a matmul with indexing maps whose weight is [n, k]. "first"
#: is a matmul whose first operand is the weight.
CONTRACTIONS = (
    "generic", "matmul", "transposed", "contract", "matvec", "vecmat", "batch_matmul",
    "batch_matvec", "batch_vecmat", "first",
)  # fmt: skip
#: Contractions of one row, and contractions that need a batch.
FLAT = ("matvec", "vecmat", "batch_matvec", "batch_vecmat")
_BATCHED = ("batch_matmul", "batch_matvec", "batch_vecmat")
#: Initial values of the sum. Those before "splat" are ways to write zero. "argument" has the shape
#: of the result, "bias" is [n] and is broadcast.
ACCUMULATORS = (
    "fill", "dense", "bitcast", "negative", "generic", "splat", "argument", "bias",
)  # fmt: skip
EPILOGUES = (
    "bias_f32", "bias_bf16", "bias_f16", "residual_f32", "residual_bf16", "residual_f16", "rows",
    "scalar", "factor", "captured",
    "gelu_tanh", "gelu_erf", "silu", "relu_maximumf", "relu_maxnumf", "relu_select", "square",
    "clamp",
)  # fmt: skip
#: What follows the epilogue: nothing; a conversion; the SiLU as a second result ("twice"); SiLU or
#: GELU, times a second product ("gate", "geglu"); a dense product ("after"); mxfp8e4m3 blocks.
ENDINGS = ("", "bf16", "f16", "twice", "gate", "geglu", "after", "quantize")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One operand of the contraction: plain floats, or a format and how it is dequantized.

    The fields have values of the tuples above. kind: of `KINDS`. layout, scales: the layouts of
    elements and of scales. constant: whether the program holds the operand as a constant.
    """

    format: str
    elements: str = "cast"
    factor: str = "extf"
    broadcast: str = "floordiv"
    style: str = "fused"
    kind: str = "f32"
    layout: str = "nk"
    scales: str = "nk"
    constant: bool = False

    @property
    def packed(self) -> bool:
        """Whether the operand has blocks with scales."""
        return self.format in FORMATS

    @property
    def register(self) -> str:
        """The float type in which the contraction reads the operand."""
        return self.kind.rpartition(">")[2] if self.packed else self.format


@dataclass(frozen=True, kw_only=True)
class Program:
    """A contraction [m, k] x [n, k], what comes before and after it.

    batch: number of independent products, 0 without a batch dimension. shared: whether all of them
    have the same weight. dynamic: whether m is known only at the call. sum: the type of the
    accumulator. whole: whether elementwise operations are arithmetic on whole tensors instead of
    linalg.generic. before: whether the activations are the product of two dense matrices. swapped:
    whether a linalg.generic computes weight * activation + sum, not sum + activation * weight.
    """

    lhs: Side
    rhs: Side
    m: int
    n: int
    k: int
    batch: int = 0
    shared: bool = False
    dynamic: bool = False
    contraction: str = "generic"
    accumulator: str = "fill"
    sum: str = "f32"
    epilogue: tuple[str, ...] = ()
    whole: bool = False
    ending: str = ""
    before: bool = False
    swapped: bool = False

    @property
    def gated(self) -> bool:
        """Whether there are two products."""
        return self.ending in ("gate", "geglu")

    def json(self) -> str:
        """Return the fields that differ from their defaults, as JSON that `read` takes."""
        return json.dumps(_record(self))


def read(text: str) -> Program:
    """Return the program that `Program.json` has written."""
    record = json.loads(text)
    for side in ("lhs", "rhs"):
        record[side] = Side(**record[side])
    record["epilogue"] = tuple(record.get("epilogue", ()))
    return Program(**record)


def _record(value: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Side):
            item = _record(item)
        elif item == field.default:
            continue
        found[field.name] = list(item) if isinstance(item, tuple) else item
    return found


def block_of(program: Program) -> int:
    """Elements per scale of the packed operands; the larger number if they differ."""
    return max(FORMATS[s.format][3] for s in (program.lhs, program.rhs) if s.packed)


def fault(program: Program) -> str:
    """Return why a combination of pieces is not a valid program; "" if it is one."""
    rules = (
        (_side_fault(program.lhs), "lhs"),
        (_side_fault(program.rhs), "rhs"),
        (program.k % block_of(program) != 0, "k is not a number of blocks"),
        (program.lhs.packed and program.before, "packed activations are arguments"),
        (program.lhs.layout != "nk" or program.lhs.scales != "nk", "activations are [m, k]"),
        (program.lhs.constant, "activations are arguments"),
        (not program.rhs.packed, "weights are packed"),
        (program.contraction in _BATCHED and not program.batch, "no batch"),
        (program.batch and program.contraction not in (*_BATCHED, "generic", "contract"),
         "this contraction has no batch"),
        (program.shared and (not program.batch or program.contraction in _BATCHED),
         "a weight for each product"),
        (program.batch and program.dynamic, "a batch with a dynamic m"),
        (program.contraction in FLAT and (program.m != 1 or program.dynamic), "one row"),
        (program.contraction in FLAT and program.before, "one row after a product"),
        (program.contraction == "first" and (program.dynamic or program.batch),
         "a weight that stands first has rows of known number"),
        (program.contraction.endswith("matvec") and program.rhs.layout != "nk",
         "matvec reads [n, k]"),
        (program.contraction.endswith("vecmat") and program.rhs.layout != "kn",
         "vecmat reads [k, n]"),
        (program.contraction != "generic" and "inline" in (program.lhs.style, program.rhs.style),
         "a named operation decodes nothing"),
        (program.sum != "f32" and {program.lhs.register, program.rhs.register} != {program.sum},
         "a sum of lower precision than its operands"),
        (program.dynamic and program.accumulator in ("dense", "bitcast", "splat"),
         "a constant with a dynamic size"),
        (_mixed(program), "blocks of two sizes share no loops"),
        (program.sum != "f32" and program.accumulator == "bias", "a bias is f32"),
        (program.ending == "quantize" and program.n % 32, "the result is not a number of blocks"),
        (program.rhs.format[:5] == "mxfp6" and program.rhs.layout == "kn" and program.n % 4,
         "a row is not a number of bytes"),
        (FORMATS[program.rhs.format][1] == 4 and program.rhs.layout == "kn" and program.n % 2,
         "a row is not a number of bytes"),
    )  # fmt: skip
    for wrong, reason in rules:
        if wrong:
            return wrong if isinstance(wrong, str) else reason
    return ""


def _mixed(program: Program) -> bool:
    """Whether one pair of loops, over blocks and in a block, would have to serve two sizes of
    blocks: both sides are inline, and one has the broadcast "blocks"."""
    sides = [side for side in (program.lhs, program.rhs) if side.packed]
    inline = [side for side in sides if side.style == "inline"]
    loops = any(side.broadcast == "blocks" for side in inline)
    return loops and len({FORMATS[side.format][3] for side in inline}) > 1


def _side_fault(side: Side) -> str:
    if not side.packed:
        return "" if side == Side(format=side.format) else "floats are not dequantized"
    element, bits, scale, _ = FORMATS[side.format]
    inline = side.style == "inline"
    lookup = side.elements != "cast"
    integers = side.factor in ("exp2", "powf", "fpowi", "shift")
    rules = (
        (lookup and bits != 4, "a lookup has 16 values"),
        (side.factor == "scaling_extf" and (lookup or element == "i8"),
         "arith.scaling_extf reads elements"),
        (scale != "f8E8M0FNU" and side.factor != "extf", "a scale that is no exponent"),
        (side.kind == "f16" and scale == "f8E8M0FNU", "f16 lacks most scales"),
        (scale == "f32" and (side.kind not in ("f32", "f32>bf16") or side.constant),
         "a float scale multiplies in f32"),
        (scale == "f32" and side.style == "whole", "arithmetic on tensors of floats"),
        (element == "i8" and side.kind not in ("f32", "f32>bf16"), "mxint8 is scaled in f32"),
        (lookup and (side.kind[:3] != "f32" or side.layout != "nk"),
         "a lookup gives f32 along k"),
        (integers and side.kind[:3] != "f32", "an exponent becomes f32"),
        (inline and (lookup or integers), "decoded by an operation of its own"),
        (inline and side.broadcast not in ("floordiv", "blocks"), "scales are read in place"),
        (side.style in ("stepwise", "late") and side.factor == "scaling_extf",
         "arith.scaling_extf is one step"),
        (side.style in ("late", "whole") and side.broadcast not in ("broadcast", "copy"),
         "scales have the shape of the elements"),
        (side.style == "whole" and (integers or element == "i8" or lookup),
         "arithmetic on tensors of floats"),
    )  # fmt: skip
    return next((reason for wrong, reason in rules if wrong), "")
