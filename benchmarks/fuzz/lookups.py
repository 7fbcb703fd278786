"""MLIR of table look-ups for the nibbles of bytes, in either nibble order."""

from __future__ import annotations

from fuzz.writer import Value, Writer

#: The values of the e2m1 codes 0 to 7; codes 8 to 15 have the opposite sign (OCP MX 1.0, 5.3.3).
_E2M1 = "0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0"


def looked_up(w: Writer, elements: str, data: Value) -> Value:
    """Write the decoding of bytes [.., k / 2] of two nibbles each; return an f32 tensor [.., k].

    elements: "lookup" and "high" are one operation that computes the shift of a nibble from its
    place in the byte, with the low or the high nibble first. "concat" and "halves" are an operation
    for the low nibbles and one for the high ones; "concat" interleaves their results, and "halves"
    puts those of the high nibbles after those of the low ones.
    """
    negative = ", ".join(f"-{each}" for each in _E2M1.split(", "))
    table = w.scalar(f"arith.constant dense<[{_E2M1}, {negative}]> : tensor<16xf32>")
    loops = "abcd"[: len(data.shape)]
    index, sizes = " ".join(loops), dict(zip(loops, data.shape, strict=True))
    last = len(data.shape) - 1

    def value(byte: str, shift: str) -> str:
        mask = w.scalar("arith.constant 15 : i8")
        moved = w.scalar(f"arith.shrui {byte}, {shift} : i8")
        nibble = w.scalar(f"arith.andi {moved}, {mask} : i8")
        code = w.scalar(f"arith.index_castui {nibble} : i8 to index")
        return w.scalar(f"tensor.extract {table}[{code}] : tensor<16xf32>")

    def by_place(byte: str) -> str:
        half = w.scalar("linalg.index " + str(len(loops)) + " : index")
        four = w.scalar("arith.constant 4 : i8")
        place = w.scalar(f"arith.index_cast {half} : index to i8")
        shift = w.scalar(f"arith.muli {place}, {four} : i8")
        if elements == "high":
            shift = w.scalar(f"arith.subi {four}, {shift} : i8")
        return value(byte, shift)

    if elements in ("lookup", "high"):
        halves = w.generic([(data, index)], f"{index} h", "f32", {**sizes, "h": 2}, by_place)
        return w.collapse(halves, last)
    parts = [
        w.generic([(data, index)], index, "f32", sizes,
                  lambda byte, shift=shift: value(byte, w.scalar(f"arith.constant {shift} : i8")))
        for shift in (0, 4)
    ]  # fmt: skip
    if elements == "halves":
        return w.concat(parts, last)
    units = [w.expand(each, last, [each.shape[last], 1]) for each in parts]
    return w.collapse(w.concat(units, last + 1), last)
