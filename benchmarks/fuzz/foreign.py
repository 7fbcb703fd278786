"""A hundred programs in the forms of other projects, each with the source of its form.

The forms are described, not copied: the operations, their order, types and maps, in IREE's and
LLVM's tests, in exports of JAX 0.10 and torch 2.13, and in hand-written programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuzz.description import FLOATS, Program, Side, fault

_SCALED = {"factor": "scaling_extf", "broadcast": "blocks", "style": "inline"}
_WHOLE = {"factor": "scaling_extf", "broadcast": "broadcast", "style": "whole"}
#: jax.lax.scaled_dot: scales are copied to each element; both become bf16, and are multiplied.
_DOT = {"broadcast": "copy", "style": "late", "kind": "bf16"}
#: w.astype(f32).reshape(..) * s.astype(f32)[..., None], each step an operation.
_PLAIN = {"broadcast": "unit", "style": "stepwise"}
#: transformers' gpt-oss: a lookup of nibbles, and ldexp, which torch exports as pow.
_LOOKUP = {"elements": "lookup", "factor": "powf", "broadcast": "unit", "style": "stepwise"}


@dataclass(frozen=True)
class Foreign:
    """A program: the project that has its form, its name, and its description."""

    origin: str
    name: str
    program: Program


def foreign() -> list[Foreign]:
    """Return all programs, project by project, in a fixed order."""
    found = [*_iree(), *_llvm(), *_jax(), *_torch(), *_hand()]
    for each in found:
        assert not fault(each.program), (each.name, fault(each.program))
    return found


def _program(
    lhs: str, rhs: str, form: dict[str, Any], *, left: dict[str, Any] | None = None, **more: Any
) -> Program:
    """Describe a product, of 5 x 32 x 128 unless `more` has other sizes.

    form: fields of the weights. Packed activations have them too, but for layouts and constants,
    and for the fields in `left`. more: fields of the program.
    """
    side = Side(format=lhs)
    if side.packed:
        own = {**form, "layout": "nk", "scales": "nk", "constant": False, **(left or {})}
        side = dataclasses.replace(side, **own)
    shape = {"m": 5, "n": 32, "k": 128, **more}
    return Program(lhs=side, rhs=Side(format=rhs, **form), **shape)


def _iree() -> Iterator[Foreign]:
    """Generics over (m, n, ko, kb) with arith.scaling_extf in the body: the form of IREE's tests
    of scaled matrix instructions (Codegen/LLVMGPU/test, tests/e2e)."""

    def case(name: str, lhs: str, rhs: str, **more: Any) -> Foreign:
        return Foreign("IREE", name, _program(lhs, rhs, _SCALED, **more))

    pairs = ("mxfp4", "mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2")
    for name in pairs:
        yield case(f"{name} by itself", name, name)
    yield case("mxfp4 by mxfp8e4m3", "mxfp4", "mxfp8e4m3")
    yield case("mxfp8e4m3 by mxfp4", "mxfp8e4m3", "mxfp4")
    for kind in FLOATS:
        yield case(f"{kind} by mxfp4, one side scaled", kind, "mxfp4")
    yield case("one block, one row, one column", "mxfp4", "mxfp4", m=1, n=1, k=32)
    yield case("a batch", "mxfp4", "mxfp4", batch=2)
    yield case("rows that come with the call", "mxfp4", "mxfp4", dynamic=True)
    yield case("the product added to the sum from the left", "mxfp4", "mxfp4", swapped=True)
    yield case("an accumulator that is an argument", "mxfp4", "mxfp4", accumulator="argument")
    yield case("the result quantized to blocks", "mxfp4", "mxfp4", ending="quantize")
    yield case("the result rounded to f16", "mxfp4", "mxfp4", ending="f16")


def _llvm() -> Iterator[Foreign]:
    """arith.scaling_extf on whole tensors with a broadcast scale (as mlir/test/Dialect/Arith and
    Conversion/ArithToAMDGPU have it on vectors), then each named contraction of linalg."""

    def case(name: str, lhs: str, rhs: str, **more: Any) -> Foreign:
        form = {**_WHOLE, **more.pop("form", {})}
        return Foreign("LLVM", name, _program(lhs, rhs, form, **more))

    for rhs in ("mxfp4", "mxfp8e4m3", "mxfp8e5m2"):
        yield case(f"scaling_extf of {rhs} to f32, matmul", "f32", rhs, contraction="matmul")
    yield case("scaling_extf to bf16, matmul of bf16", "bf16", "mxfp4", form={"kind": "bf16"},
               contraction="matmul")  # fmt: skip
    yield case("scaling_extf to f32, truncf to f16", "f16", "mxfp4", form={"kind": "f32>f16"},
               contraction="matmul")  # fmt: skip
    yield case("extf, extf and mulf on tensors", "f32", "mxfp4", form={"factor": "extf"},
               contraction="matmul")  # fmt: skip
    yield case("both sides, matmul with transposed maps", "mxfp8e4m3", "mxfp8e4m3",
               contraction="transposed")  # fmt: skip
    for op in ("contract", "transposed", "generic"):
        yield case(f"linalg.{op} of f32 by mxfp4", "f32", "mxfp4", contraction=op)
    yield case("linalg.batch_matmul", "f32", "mxfp4", contraction="batch_matmul", batch=2)
    yield case("linalg.matvec", "f32", "mxfp4", contraction="matvec", m=1)
    yield case("linalg.vecmat", "f32", "mxfp4", contraction="vecmat", m=1,
               form={"layout": "kn", "scales": "kn"})  # fmt: skip
    yield case("a bf16 accumulator", "bf16", "mxfp4", form={"kind": "bf16"}, sum="bf16",
               contraction="matmul")  # fmt: skip


def _jax() -> Iterator[Foreign]:
    """What iree-stablehlo-input-transformation-pipeline makes of exports of JAX."""
    kn = {"layout": "kn", "scales": "kn"}

    def dot(name: str, lhs: str, rhs: str, **more: Any) -> Foreign:
        more = {"contraction": "matmul", **more}
        form = {**_DOT, **kn, **more.pop("form", {})}
        return Foreign("JAX", name, _program(lhs, rhs, form, **more))

    def plain(name: str, lhs: str, rhs: str, **more: Any) -> Foreign:
        more = {"contraction": "matmul", **more}
        form = {**_PLAIN, **more.pop("form", {})}
        return Foreign("JAX", name, _program(lhs, rhs, form, **more))

    for rhs in ("mxfp4", "mxfp8e4m3", "mxfp8e5m2"):
        yield dot(f"lax.scaled_dot of {rhs}", rhs, rhs)
    yield dot("lax.scaled_dot of bf16 by mxfp4", "bf16", "mxfp4")
    yield dot("lax.scaled_dot, a batch", "mxfp8e4m3", "mxfp8e4m3", contraction="batch_matmul",
              batch=2)  # fmt: skip
    yield dot("lax.scaled_dot, then bf16", "mxfp4", "mxfp4", ending="bf16")
    yield dot("lax.scaled_dot, bias and gelu", "mxfp4", "mxfp4",
              epilogue=("bias_f32", "gelu_tanh"))  # fmt: skip
    yield dot("lax.scaled_dot of a closed-over weight", "bf16", "mxfp4", form={"constant": True})
    for rhs in ("mxfp4", "mxfp8e4m3", "nvfp4"):
        yield plain(f"x @ (w * s).T of {rhs}", "f32", rhs)
    yield plain("x @ (w * s) in bf16", "bf16", "mxfp4", form={"kind": "bf16"})
    yield plain("the scale copied, not expanded", "f32", "mxfp4", form={"broadcast": "copy"})
    yield plain("nn.relu(x @ w)", "f32", "mxfp4", epilogue=("relu_maximumf",))
    yield plain("nn.gelu(x @ w, approximate=False)", "f32", "mxfp4", epilogue=("gelu_erf",))
    yield plain("nn.silu(x @ w) * (x @ v)", "f32", "mxfp4", ending="gate")
    yield plain("a weight that is a constant", "f32", "mxfp4", form={"constant": True})


def _torch() -> Iterator[Foreign]:
    """What torch-to-iree makes of torch.export."""

    def case(name: str, lhs: str, rhs: str, form: dict[str, Any], **more: Any) -> Foreign:
        more = {"contraction": "matmul", **more}
        return Foreign("torch", name, _program(lhs, rhs, form, **more))

    for rhs in ("mxfp8e4m3", "mxfp8e5m2"):
        yield case(f"float8 buffers, to(float32), {rhs}", "f32", rhs, _PLAIN)
    yield case("float8 buffers, constants", "f32", "mxfp8e4m3", {**_PLAIN, "constant": True})
    yield case("F.linear with a bias", "f32", "mxfp8e4m3", _PLAIN, epilogue=("bias_f32",))
    yield case("F.linear in bfloat16", "bf16", "mxfp8e4m3", {**_PLAIN, "kind": "f32>bf16"},
               epilogue=("bias_bf16",), ending="bf16")  # fmt: skip
    yield case("a lookup of nibbles and ldexp", "f32", "mxfp4", _LOOKUP)
    yield case("a lookup of nibbles and ldexp, to bfloat16", "bf16", "mxfp4",
               {**_LOOKUP, "kind": "f32>bf16"})  # fmt: skip
    yield case("a lookup of nibbles and exp2", "f32", "mxfp4", {**_LOOKUP, "factor": "exp2"})
    yield case("a lookup of nibbles, scales shifted to float bits", "f32", "mxfp4",
               {**_LOOKUP, "factor": "shift"})  # fmt: skip
    yield case("nvfp4: a lookup of nibbles, e4m3 scales", "f32", "nvfp4",
               {**_LOOKUP, "factor": "extf"})  # fmt: skip
    yield case("F.silu(gate) * up", "f32", "mxfp4", _LOOKUP, ending="gate")
    yield case("F.relu(linear).square()", "f32", "mxfp4", _LOOKUP,
               epilogue=("relu_maximumf", "square"))  # fmt: skip
    yield case("a residual in bfloat16", "bf16", "mxfp4", {**_LOOKUP, "kind": "f32>bf16"},
               epilogue=("residual_bf16",), ending="bf16")  # fmt: skip
    yield case("torch.bmm", "f32", "mxfp8e4m3", _PLAIN, contraction="batch_matmul", batch=2)
    yield case("torch.mv", "f32", "mxfp8e4m3", _PLAIN, contraction="matvec", m=1)
    yield case("a dense layer before, and one after", "f32", "mxfp4", _LOOKUP, before=True,
               ending="after")  # fmt: skip
    yield case("rows that come with the call", "f32", "mxfp8e4m3", _PLAIN, dynamic=True)


def _hand() -> Iterator[Foreign]:
    """Variants that a person may write; each differs from the canonical form in one thing."""
    fused = {"factor": "extf", "broadcast": "floordiv", "style": "fused"}
    inline = {**fused, "style": "inline"}

    def case(name: str, lhs: str, rhs: str, form: dict[str, Any], **more: Any) -> Foreign:
        return Foreign("hand", name, _program(lhs, rhs, form, **more))

    for accumulator in ("dense", "bitcast", "negative", "generic", "splat", "bias"):
        yield case(f"accumulator: {accumulator}", "bf16", "mxfp4", inline, accumulator=accumulator)
    yield case("two packed sides, dense<0.0>", "mxfp4", "mxfp4",
               {**inline, "factor": "scaling_extf"}, accumulator="dense")  # fmt: skip
    for epilogue in (
        ("bias_f32",), ("bias_f16",), ("residual_f32",), ("rows",), ("scalar",), ("silu",),
        ("relu_maxnumf",), ("relu_select",), ("clamp",), ("bias_f32", "gelu_erf"),
        ("scalar", "bias_bf16", "relu_maximumf", "residual_f32"),
    ):  # fmt: skip
        yield case(f"epilogue: {', '.join(epilogue)}", "bf16", "mxfp4", inline, epilogue=epilogue)
    yield case("epilogue on whole tensors", "bf16", "mxfp4", inline, whole=True,
               epilogue=("bias_f32", "relu_maximumf", "scalar"))  # fmt: skip
    yield case("a result used twice", "bf16", "mxfp4", inline, ending="twice")
    yield case("a gate over two products", "bf16", "mxfp4", inline, ending="gate")
    for layout, scales in (("kn", "kn"), ("nk", "kn"), ("kn", "nk")):
        yield case(f"weight [{layout}], scales [{scales}]", "f32", "mxfp4",
                   {**fused, "layout": layout, "scales": scales})  # fmt: skip
    yield case("mxint8 by sitofp and two products", "f32", "mxint8", fused)
    yield case("mxint8 by itself", "mxint8", "mxint8", fused)
    yield case("nvfp4 by itself", "nvfp4", "nvfp4", fused)
    yield case("nvfp4 in f16", "f16", "nvfp4", {**fused, "kind": "f16"})
    yield case("mxfp6 weights rounded to bf16", "bf16", "mxfp6e3m2", {**fused, "kind": "f32>bf16"})
    yield case("blocks of 32 by blocks of 16", "mxfp8e4m3", "nvfp4", fused)
    yield case("scales exp2'd in place", "bf16", "mxfp8e4m3", {**fused, "factor": "exp2"})
    yield case("scales shifted in place", "bf16", "mxfp4", {**fused, "factor": "shift"})
    yield case("f16 sums", "f16", "mxfp4", {**fused, "kind": "f32>f16"}, sum="f16")
    yield case("the weight first, the sum last", "f32", "mxfp4", inline, swapped=True)
    yield case("seven columns, three rows", "f32", "mxfp4", fused, m=3, n=7)
