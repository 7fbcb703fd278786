"""Ways to decode the elements and the scales of mxfp4, as MLIR text: %e [N, K] and %s [N, K / 32].

They come from %bytes [N, K / 2] and %scales [N, K / 32], both i8. Each function takes the type of
what it makes.
"""

import re
from functools import partial

M, N, K = 4, 16, 64
KO = K // 32

#: Target -> how it is run, and a part of the instructions that a kernel of ours has there.
TARGETS = {"cpu": (None, ""), "gfx950": ("simulator", "v_mfma_f32_")}

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def scalar(kind: str) -> str:
    """The element type of a tensor type."""
    return re.split("[x<]", kind.rstrip(">"))[-1]


def parallel(*ins: str, out: str, result: str, body: str) -> str:
    """An elementwise linalg.generic; `ins` and `out`: "%value : type : indices"."""
    read = [[part.strip() for part in each.split(" : ")] for each in (*ins, f"-- : {out}")]
    loops = read[-1][2]
    count = len(loops.split(","))
    maps = ", ".join(f"affine_map<({loops}) -> ({at})>" for _, _, at in read)
    kinds = ", ".join(['"parallel"'] * count)
    types = [each[1] for each in read]
    scalars = ", ".join(f"%i{i}: {scalar(t)}" for i, t in enumerate(types[:-1]))
    values = ", ".join(each[0] for each in read[:-1])
    given = f"ins({values} : {', '.join(types[:-1])})" if ins else ""
    return f"""
  {result}_init = tensor.empty() : {types[-1]}
  {result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
    {given} outs({result}_init : {types[-1]}) {{
  ^bb0({scalars}{", " if ins else ""}%o: {scalar(types[-1])}):
    {body}
  }} -> {types[-1]}"""


def elementwise(*ins: str, out: str) -> str:
    """%z, the products of two operands element by element."""
    return parallel(*ins, out=out, result="%z", body=MULTIPLY)


MULTIPLY = "%p0 = arith.mulf %i0, %i1 : f32\n    linalg.yield %p0 : f32"


def table(kind: str, values: tuple[float, ...] = VALUES) -> str:
    numbers = ", ".join(f"{value:e}" for value in values)
    return f"arith.constant dense<[{numbers}]> : tensor<{len(values)}x{kind}>"


#: The nibble of the byte at (n, k floordiv 2), as %code: index.
NIBBLE = """%k = linalg.index 1 : index
    %two = arith.constant 2 : index
    %place = arith.remui %k, %two : index
    %part = arith.index_cast %place : index to i8
    %four = arith.constant 4 : i8
    %by = arith.muli %part, %four : i8
    %moved = arith.shrui %i0, %by : i8
    %low = arith.constant 15 : i8
    %bits = arith.andi %moved, %low : i8"""
BYTES = f"%bytes : tensor<{N}x{K // 2}xi8>"


def out(kind: str) -> str:
    return f"tensor<{N}x{K}x{kind}> : n, k"


def typed_elements(kind: str) -> str:
    return f"""
  %f4 = flow.tensor.bitcast {BYTES} -> tensor<{N}x{K}xf4E2M1FN>""" + parallel(
        f"%f4 : tensor<{N}x{K}xf4E2M1FN> : n, k", out=out(kind), result="%e",
        body=f"%v = arith.extf %i0 : f4E2M1FN to {kind}\n    linalg.yield %v : {kind}",
    )  # fmt: skip


def extracted(kind: str) -> str:
    """Looked up by the nibble that the place in the row chooses."""
    return f"\n  %values = {table(kind)}" + parallel(
        f"{BYTES} : n, k floordiv 2", out=out(kind), result="%e",
        body=f"""{NIBBLE}
    %code = arith.index_castui %bits : i8 to index
    %v = tensor.extract %values[%code] : tensor<16x{kind}>
    linalg.yield %v : {kind}""",
    )  # fmt: skip


HALVES = {"low": "%h = arith.andi %i0, %c : i8", "high": "%h = arith.shrui %i0, %c : i8"}


def half(which: str, number: int) -> str:
    return parallel(
        f"{BYTES} : n, b", out=f"tensor<{N}x{K // 2}xi8> : n, b", result=f"%{which}",
        body=f"%c = arith.constant {number} : i8\n    {HALVES[which]}\n    linalg.yield %h : i8",
    )  # fmt: skip


def concatenated(kind: str, order: tuple[str, str] = ("low", "high")) -> str:
    """Low and high nibbles as tensors, beside each other along a dimension of their own."""
    small, both = f"tensor<{N}x{K // 2}x1xi8>", f"tensor<{N}x{K // 2}x2xi8>"
    text = f"\n  %values = {table(kind)}" + half("low", 15) + half("high", 4)
    for which in ("low", "high"):
        text += f"""
  %{which}1 = tensor.expand_shape %{which} [[0], [1, 2]] output_shape [{N}, {K // 2}, 1]
    : tensor<{N}x{K // 2}xi8> into {small}"""
    text += f"""
  %both = tensor.concat dim(2) %{order[0]}1, %{order[1]}1 : ({small}, {small}) -> {both}
  %codes = tensor.collapse_shape %both [[0], [1, 2]] : {both} into tensor<{N}x{K}xi8>"""
    return text + looked_up(kind)


def halves(kind: str, parts: int = 1) -> str:
    """The low nibbles of the bytes are the first half of a row, or of each of its `parts`."""
    size = K // 2 // parts
    small, both = (f"tensor<{N}x{parts}x{each}xi8>" for each in (size, 2 * size))
    text = f"\n  %values = {table(kind)}" + half("low", 15) + half("high", 4)
    for which in ("low", "high"):
        text += f"""
  %{which}1 = tensor.expand_shape %{which} [[0], [1, 2]] output_shape [{N}, {parts}, {size}]
    : tensor<{N}x{K // 2}xi8> into {small}"""
    text += f"""
  %both = tensor.concat dim(2) %low1, %high1 : ({small}, {small}) -> {both}
  %codes = tensor.collapse_shape %both [[0], [1, 2]] : {both} into tensor<{N}x{K}xi8>"""
    return text + looked_up(kind)


def looked_up(kind: str) -> str:
    """The values of the table by %codes."""
    return parallel(
        f"%codes : tensor<{N}x{K}xi8> : n, k", out=out(kind), result="%e",
        body=f"""%code = arith.index_castui %i0 : i8 to index
    %v = tensor.extract %values[%code] : tensor<16x{kind}>
    linalg.yield %v : {kind}""",
    )  # fmt: skip


def inserted(kind: str) -> str:
    """As transformers decodes gpt-oss: out[:, 0::2] = table[low], out[:, 1::2] = table[high]."""
    part = f"tensor<{N}x{K // 2}x{kind}>"
    text = f"\n  %values = {table(kind)}" + half("low", 15) + half("high", 4)
    for which in ("low", "high"):
        text += parallel(
            f"%{which} : tensor<{N}x{K // 2}xi8> : n, b", out=f"{part} : n, b",
            result=f"%{which}_v",
            body=f"""%w = arith.extui %i0 : i8 to i32
    %code = arith.index_cast %w : i32 to index
    %v = tensor.extract %values[%code] : tensor<16x{kind}>
    linalg.yield %v : {kind}""",
        )  # fmt: skip
    whole = f"tensor<{N}x{K}x{kind}>"
    return (
        text
        + f"""
  %e0 = tensor.empty() : {whole}
  %e1 = tensor.insert_slice %low_v into %e0[0, 0] [{N}, {K // 2}] [1, 2] : {part} into {whole}
  %e = tensor.insert_slice %high_v into %e1[0, 1] [{N}, {K // 2}] [1, 2] : {part} into {whole}"""
    )


def gathered(kind: str) -> str:
    """A gather of the table by a tensor of numbers."""
    flat = N * K
    return f"\n  %values = {table(kind)}" + parallel(
        f"{BYTES} : n, k floordiv 2", out=f"tensor<{N}x{K}xi32> : n, k", result="%codes",
        body=f"""{NIBBLE}
    %v = arith.extui %bits : i8 to i32
    linalg.yield %v : i32""",
    ) + f"""
  %flat = tensor.collapse_shape %codes [[0, 1]] : tensor<{N}x{K}xi32> into tensor<{flat}xi32>
  %g0 = tensor.empty() : tensor<{flat}x{kind}>
  %found = iree_linalg_ext.gather dimension_map = [0]
    ins(%values, %flat : tensor<16x{kind}>, tensor<{flat}xi32>)
    outs(%g0 : tensor<{flat}x{kind}>) -> tensor<{flat}x{kind}>
  %e = tensor.expand_shape %found [[0, 1]] output_shape [{N}, {K}]
    : tensor<{flat}x{kind}> into tensor<{N}x{K}x{kind}>"""  # fmt: skip


def shifted(kind: str) -> str:
    """Sign, exponent and digit of the code are put into the bits of an f32."""
    body = f"""{NIBBLE}
    %c = arith.extui %bits : i8 to i32
    %one = arith.constant 1 : i32
    %three = arith.constant 3 : i32
    %bias = arith.constant 126 : i32
    %n22 = arith.constant 22 : i32
    %n23 = arith.constant 23 : i32
    %n31 = arith.constant 31 : i32
    %zero = arith.constant 0 : i32
    %sign = arith.shrui %c, %three : i32
    %c1 = arith.shrui %c, %one : i32
    %exponent = arith.andi %c1, %three : i32
    %digit = arith.andi %c, %one : i32
    %e1 = arith.addi %exponent, %bias : i32
    %e2 = arith.shli %e1, %n23 : i32
    %d2 = arith.shli %digit, %n22 : i32
    %normal = arith.ori %e2, %d2 : i32
    %half = arith.constant 1056964608 : i32
    %small = arith.muli %digit, %half : i32
    %is = arith.cmpi eq, %exponent, %zero : i32
    %magnitude = arith.select %is, %small, %normal : i32
    %s2 = arith.shli %sign, %n31 : i32
    %all = arith.ori %magnitude, %s2 : i32
    %f = arith.bitcast %all : i32 to f32"""
    end = "%f" if kind == "f32" else "%v"
    body += "" if kind == "f32" else f"\n    %v = arith.truncf %f : f32 to {kind}"
    return parallel(
        f"{BYTES} : n, k floordiv 2", out=out(kind), result="%e",
        body=f"{body}\n    linalg.yield {end} : {kind}",
    )  # fmt: skip


ELEMENTS = {
    "typed": typed_elements,
    "extract": extracted,
    "concat": concatenated,
    "high_first": lambda kind: concatenated(kind, ("high", "low")),
    "halves": halves,
    "halves_of_blocks": lambda kind: halves(kind, KO),
    "insert": inserted,
    "gather": gathered,
    "shifts": shifted,
}


def scale_tensor(kind: str, body: str) -> str:
    given = f"%scales : tensor<{N}x{KO}xi8> : n, o"
    return parallel(given, out=f"tensor<{N}x{KO}x{kind}> : n, o", result="%s", body=body)


def of_f32(body: str, kind: str) -> str:
    """A scale that `body` leaves in %f, as `kind`."""
    if kind == "f32":
        return f"{body}\n    linalg.yield %f : f32"
    return f"{body}\n    %v = arith.truncf %f : f32 to {kind}\n    linalg.yield %v : {kind}"


EXPONENT = """%w = arith.extui %i0 : i8 to i32
    %bias = arith.constant 127 : i32
    %n = arith.subi %w, %bias : i32"""


def typed_scales(kind: str) -> str:
    f8 = f"tensor<{N}x{KO}xf8E8M0FNU>"
    return f"""
  %f8 = flow.tensor.bitcast %scales : tensor<{N}x{KO}xi8> -> {f8}""" + parallel(
        f"%f8 : {f8} : n, o", out=f"tensor<{N}x{KO}x{kind}> : n, o", result="%s",
        body=f"%v = arith.extf %i0 : f8E8M0FNU to {kind}\n    linalg.yield %v : {kind}",
    )  # fmt: skip


FLOAT = f"{EXPONENT}\n    %g = arith.sitofp %n : i32 to f32"
TWO = "%two = arith.constant 2.0 : f32"
SHIFT = """%w = arith.extui %i0 : i8 to i32
    %by = arith.constant 23 : i32
    %up = arith.shli %w, %by : i32
    %f = arith.bitcast %up : i32 to f32"""
#: Scale bytes -> %f: f32.
POWERS = {
    "exp2": f"{FLOAT}\n    %f = math.exp2 %g : f32",
    "powf": f"{FLOAT}\n    {TWO}\n    %f = math.powf %two, %g : f32",
    "fpowi": f"{EXPONENT}\n    {TWO}\n    %f = math.fpowi %two, %n : f32, i32",
    "shift": SHIFT,
}


def powers(name: str, kind: str) -> str:
    return scale_tensor(kind, of_f32(POWERS[name], kind))


SCALES = {"typed": typed_scales} | {name: partial(powers, name) for name in POWERS}
