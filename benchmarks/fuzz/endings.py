"""MLIR of the end of a program: the values that it returns, from the result of its epilogue."""

from __future__ import annotations

from fuzz.description import Program
from fuzz.epilogues import Elementwise, gelu_tanh, silu, to_float
from fuzz.writer import Value, Writer

#: Columns of the dense product of the ending "after".
AFTER = 12
#: Exponent of the largest number of e4m3, and that number (OCP MX 1.0, 5.3.1).
EMAX, LARGEST = 8, 448.0


def ending(w: Writer, program: Program, y: Value, other: Value | None) -> list[Value]:
    """Write the ending of a program, and return its results. y: the result of the epilogue. other:
    the second product of a gate; None for other endings."""
    each = Elementwise(w, program)
    index = " ".join(each.loops)
    if program.ending in ("bf16", "f16"):
        kind = program.ending
        return [w.each(y, kind, lambda a: to_float(w, a, "f32", kind))]
    if program.ending == "twice":
        return [y, each.apply(y, lambda a: silu(w, a), [])]
    if other is not None:
        if other.element != "f32":
            kind = other.element
            other = each.apply(other, lambda a: to_float(w, a, kind, "f32"), [])
        gate = silu if program.ending == "gate" else gelu_tanh
        return [each.apply(y, lambda a, b: w.scalar(f"arith.mulf {gate(w, a)}, {b} : f32"),
                           [(other, index)])]  # fmt: skip
    if program.ending == "after":
        return [_after(w, program, y, each)]
    if program.ending == "quantize":
        return _quantize(w, y, each)
    return [y]


def _after(w: Writer, program: Program, y: Value, each: Elementwise) -> Value:
    dense = w.argument("after", [program.n, AFTER], "f32")
    shape = [*y.shape[:-1], AFTER]
    sizes = dict(zip(each.loops, y.shape, strict=True)) | {"p": AFTER}
    out = " ".join([*each.loops[:-1], "p"])

    def body(a: str, b: str, total: str) -> str:
        product = w.scalar(f"arith.mulf {a}, {b} : f32")
        return w.scalar(f"arith.addf {total}, {product} : f32")

    return w.generic([(y, " ".join(each.loops)), (dense, "n p")], out, "f32", sizes, body,
                     w.fill(0.0, shape, "f32"))  # fmt: skip


def _quantize(w: Writer, y: Value, each: Elementwise) -> list[Value]:
    """Quantize y to mxfp8e4m3 by the recipe "floor". Return the bytes of elements and of scales."""
    last = len(y.shape) - 1
    blocks = w.expand(y, last, [y.shape[last] // 32, 32])
    lead = each.loops[:-1]
    sizes = dict(zip([*lead, "o", "i"], blocks.shape, strict=True))
    here, there = " ".join([*lead, "o", "i"]), " ".join([*lead, "o"])

    def larger(a: str, most: str) -> str:
        size = w.scalar(f"math.absf {a} : f32")
        return w.scalar(f"arith.maximumf {most}, {size} : f32")

    largest = w.generic([(blocks, here)], there, "f32", sizes, larger,
                        w.fill(0.0, blocks.shape[:-1], "f32"))  # fmt: skip

    def exponent(a: str) -> str:
        bits = w.scalar(f"arith.bitcast {a} : f32 to i32")
        field = w.scalar(f"arith.shrui {bits}, {w.scalar('arith.constant 23 : i32')} : i32")
        less = w.scalar(f"arith.subi {field}, {w.scalar(f'arith.constant {EMAX} : i32')} : i32")
        least = w.scalar("arith.constant 0 : i32")
        return w.scalar(f"arith.maxsi {less}, {least} : i32")

    of_scale = {loop: sizes[loop] for loop in there.split()}
    scales = w.generic([(largest, there)], there, "i8", of_scale,
                       lambda a: w.scalar(f"arith.trunci {exponent(a)} : i32 to i8"))  # fmt: skip

    def element(a: str, byte: str) -> str:
        number = w.scalar(f"arith.extui {byte} : i8 to i32")
        inverse = w.scalar(f"arith.subi {w.scalar('arith.constant 254 : i32')}, {number} : i32")
        bits = w.scalar(f"arith.shli {inverse}, {w.scalar('arith.constant 23 : i32')} : i32")
        factor = w.scalar(f"arith.bitcast {bits} : i32 to f32")
        value = w.scalar(f"arith.mulf {a}, {factor} : f32")
        below = w.scalar(f"arith.minimumf {value}, {w.constant(LARGEST, 'f32')} : f32")
        inside = w.scalar(f"arith.maximumf {below}, {w.constant(-LARGEST, 'f32')} : f32")
        code = w.scalar(f"arith.truncf {inside} : f32 to f8E4M3FN")
        return w.scalar(f"arith.bitcast {code} : f8E4M3FN to i8")

    codes = w.generic([(blocks, here), (scales, there)], here, "i8", sizes, element)
    return [w.collapse(codes, last), scales]
