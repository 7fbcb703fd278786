"""Hostile texts for hostile_cases.py: chat templates, arrays, options, programs and pass lists."""

import struct

#: Templates that must be refused.
TEMPLATES: tuple[bytes, ...] = (
    b"{% if %}",
    b"{{",
    b"{{ 1 / 0 }}",
    b"{{ a.b.c }}",
    b"{{ 'a' * 10**10 }}",
    b"{{ '%1000000000d' % 3 }}",
    b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    b"{{ 'x'.encode('utf-16').decode() }}",
    b"{{ (1e400) | int }}",
    b"{{ ''.__class__.__mro__ }}",
    b"{{ messages.append(1) }}",
    b"{{ raise_exception('no') }}",
    b"{{ " + b"(" * 20000 + b"}}",
    b"{% if 1 %}" * 2000,
    b"{% for i in range(999) %}{{ 'y' * 99999 }}{% endfor %}",
    b"\xff\xfe",
    b"{% include 'x' %}",
    b"{% extends 'x' %}",
    b"{{ range(10**9) | list }}",
    b"{{ messages | tojson(indent='x' * 10**9) }}",
)


def npy(header: str, body: bytes = b"") -> bytes:
    """Return a .npy file of version 1 with the given header, which need not be valid."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


def _described(descr: str, shape: str, order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


ARRAYS: tuple[bytes, ...] = (
    b"",
    b"hello",
    b"\x93NUMPY",
    b"\x93NUMPY\x09\x00aa",
    b"PK\x03\x04",
    npy(_described("'<f4'", "(1099511627776, 4)")),
    npy(_described("'<f4'", f"({1 << 62},)")),
    npy(_described("'<f4'", f"({10**30},)")),
    npy(_described("'<f4'", "(-4,)"), bytes(16)),
    npy(_described("'<f4'", "(1.5,)"), bytes(16)),
    npy(_described("'<f4'", "4"), bytes(16)),
    npy(_described("'|O'", "(4,)"), bytes(32)),
    npy(_described("'|V0'", "(4,)"), bytes(32)),
    npy(_described("'>f4'", "(4,)"), bytes(16)),
    npy(_described("'<f8'", "(4,)"), bytes(32)),
    npy(_described("'<f4'", "(5,)"), bytes(20)),
    npy(_described("[('a', '<f4')]", "(4,)"), bytes(16)),
    npy(_described("'<f4'", "(4,)", "7"), bytes(16)),
    npy(_described("'" + "f" * 3000 + "'", "(4,)")),
    npy("(" * 5000),
    npy("[" * 9000),
    npy("{" + "'descr':" * 900),
    npy("x" * 20000),
    npy("__import__('os')"),
)

OPTIONS: tuple[str, ...] = (
    "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--max-new-tokens", "--stop",
    "--threads", "--level", "--device", "--prompt-tokens", "--system", "--function", "--input",
    "--output", "--trace", "--wave", "--nothing",
)  # fmt: skip
VALUES: tuple[str, ...] = (
    "", "0", "-1", "1", "nan", "inf", "1e-320", "1e400", str(1 << 63), str(1 << 200), "x", "\0",
    "../x", "/", "/no/such/place", "simulator", "hip", "local-sync", "cpu", "1,2,", "9" * 5000,
    "\ud800", "{", "a" * 300,
)  # fmt: skip

_BODY = " {\n  return %x : tensor<4xf32>\n}\n"
_MAIN = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32>"
#: Programs that must be refused by `mxc compile`; `mxc opt` may take some.
PROGRAMS: tuple[bytes, ...] = tuple(
    text if isinstance(text, bytes) else text.encode()
    for text in (
        b"",
        b"\0" * 4,
        b"\xff\xfe\x00",
        b"ML\xefR",
        b"ML\xefR" + bytes(64),
        "// nothing\n",
        "no MLIR at all",
        "module",
        "func.func @main() { retrun }",
        "func.func @main() attributes {a = " + "[" * 20000 + "]" * 20000 + "} { return }",
        "func.func private @f(" + "tuple<" * 20000 + ">" * 20000 + ")",
        "func.func @main(%c: i1) {\n" + "scf.if %c {\n" * 6000 + "}\n" * 6000 + "return }",
        _MAIN + " {\n  %0 = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        "  return %0 : tensor<4xf32>\n}\n",
        (_MAIN + _BODY).replace("tensor<4xf32>", f"tensor<{1 << 62}xf32>"),
        (_MAIN + _BODY).replace("tensor<4xf32>", f"tensor<{1 << 70}xf32>"),
        (_MAIN + _BODY).replace("tensor<4xf32>", "tensor<*xf32>"),
        (_MAIN + _BODY).replace("  return", "  gpu.barrier\n  return"),
        "gpu.module @k { gpu.func @f() kernel { gpu.return } }\n" + _MAIN + _BODY,
        _MAIN + _BODY + _MAIN + _BODY,
        _MAIN + " {\n  %0 = call @gone(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        "  return %0 : tensor<4xf32>\n}\n",
        _MAIN,
        _MAIN + " {\n  %0 = \"no.such\"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        "  return %0 : tensor<4xf32>\n}\n",
        "func.func @main(%x: index) -> index { return %x : index }",
    )
)  # fmt: skip

PASSES: tuple[str, ...] = (
    "canonicalize", "cse", "canonicalize{", "canonicalize{foo=1}", "canonicalize{max-iterations=x}",
    "canonicalize{max-iterations=1 max-iterations=2}", "mxc-expand-blocks{a=1}", "", ",", "mxc-",
    "mxc-lower-to-cpu-kernels{isa=none}", "mxc-set-cpu-schedule{rows=-1}", "{" * 3000, "\0", "é",
    "mxc-check-operations,canonicalize", "func.func(canonicalize{bad})", "builtin.module(cse)",
    "no-such-pass",
)  # fmt: skip
