"""Activations as programs quantize them, on this CPU, against the reference in numpy."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of
from mxc.dialects.quantizations import match_int8_quantization, match_quantization
from mxc.dialects.quantize import MX_FORMATS, quantize_int8, quantize_mx
from mxc.dialects.quantize_scalars import INT8_MAX
from mxc.errors import FormatError
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize
from mxc.passes.base import run
from mxc.passes.rewriting.rebuild import linalg_operations

Quantize = Callable[[ir.Value], tuple[ir.Value, ir.Value]]

CASES = [(name, recipe) for name in MX_FORMATS for recipe in ScaleRecipe]
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def blocks() -> npt.NDArray[np.float32]:
    """float32 [1024, 2 * 32]: blocks led by every exponent, subnormals, Inf and NaN among them.

    Elements are up to 2^30 smaller than the first; half of them have few bits, and make ties.
    """
    rng = np.random.default_rng(11)
    lead = np.repeat(np.arange(256), 8)[:, None]
    exponents = np.maximum(
        lead - rng.integers(0, 10, (2048, 32)) * rng.integers(0, 4, (2048, 1)), 0
    )
    mantissa = rng.integers(0, 1 << 23, (2048, 32))
    mantissa[::2] &= ~((1 << rng.integers(16, 24, (1024, 32))) - 1)
    # Of an infinity, or of a NaN.
    mantissa[2040:2044] = 0
    sign = rng.integers(0, 2, (2048, 32)) << 31
    bits = (sign | exponents << 23 | mantissa).astype(np.uint32)
    return bits.view(np.float32).reshape(1024, 64)


X = blocks()


def program(builders: dict[str, Quantize], shape: tuple[int, ...] = X.shape) -> str:
    """A function for each builder: f32 -> elements and scales as bytes, or as they are."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        kind = ir.RankedTensorType.get(list(shape), ir.F32Type.get())

        def outside(value: ir.Value) -> ir.Value:
            return value if str(element_of(value)) in ("i8", "f32") else pack(value)

        with ir.InsertionPoint(module.body):
            for name, build in builders.items():

                @func.FuncOp.from_py_func(kind, name=name)
                def _(x: ir.Value, build: Quantize = build) -> tuple[ir.Value, ir.Value]:
                    elements, scales = build(x)
                    return outside(elements), outside(scales)

        return str(module)


@pytest.fixture(scope="module")
def compiled() -> rt.VmModule:
    builders: dict[str, Quantize] = {
        f"{name}_{recipe}": partial(quantize_mx, format=name, recipe=recipe)
        for name, recipe in CASES
    }
    blob = tools.compile_str(program({**builders, "int8": quantize_int8}), extra_args=[*FLAGS])
    context = rt.SystemContext(config=rt.Config("local-task"))
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    return context.modules.module


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_mx_is_the_reference(compiled: rt.VmModule, name: str, recipe: ScaleRecipe) -> None:
    wanted = quantize(X, name, recipe=recipe)
    elements, scales = (r.to_host().view(np.uint8) for r in compiled[f"{name}_{recipe}"](X))
    np.testing.assert_array_equal(scales, wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)
    assert len(np.unique(scales)) > 200
    assert (scales == 0xFF).sum() > 2


def test_int8(compiled: rt.VmModule) -> None:
    """The formula in numpy's float32, which divides and rounds as IEEE 754 says."""
    x = X.reshape(1024, 2, 32)
    elements, scales = (r.to_host() for r in compiled["int8"](X))
    amax = np.abs(x).max(-1)
    usable = np.isfinite(amax) & (amax >= np.float32(INT8_MAX * 2.0**-125))
    wanted = amax[usable] / np.float32(INT8_MAX)
    np.testing.assert_array_equal(scales[usable], wanted)
    inverse = np.float32(1) / wanted
    np.testing.assert_array_equal(elements[usable], np.rint(x[usable] * inverse[:, None]))
    # Half a step, and what is lost where x * (1 / scale) is rounded.
    exact = x[usable].astype(np.float64)
    error = np.abs(elements[usable].astype(np.float64) * scales[usable][:, None] - exact)
    assert (error <= scales[usable][:, None] * (0.5 + 127 * 2.0**-22)).all()

    tiny = np.isfinite(amax) & ~usable
    assert (tiny.sum(), (amax[tiny] > 0).sum()) > (50, 40)
    assert (scales[tiny] == 0).all()
    poisoned = ~np.isfinite(amax)
    assert np.isinf(amax[poisoned]).any()
    assert np.isnan(amax[poisoned]).any()
    assert np.isnan(scales[poisoned]).all()
    assert (elements[tiny | poisoned] == 0).all()


def test_a_tensor_is_quantized_in_two_dispatches() -> None:
    builders: dict[str, Quantize] = {"int8": quantize_int8}
    builders["mxfp4"] = lambda x: quantize_mx(x, "mxfp4", "even")
    text = tools.compile_str(program(builders), extra_args=[*FLAGS, "--compile-to=flow"]).decode()
    assert text.count("flow.dispatch @") == 2 * len(builders)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_what_is_built_is_found(name: str, recipe: ScaleRecipe, kind: str) -> None:
    """Also after MLIR has brought constants and operations to a form of its own."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        x = ir.RankedTensorType.get([3, -(2**63), 64], ir.Type.parse(kind))
        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(x, name="f")(lambda x: quantize_mx(x, name, recipe))
        for passes in ((), ("canonicalize", "cse")):
            run(passes, module)
            found = [match_quantization(op) for op in linalg_operations(module.operation)]
            (one,) = (each for each in found if each is not None)
            assert (one.format.name, one.recipe) == (name, recipe)
            assert one.x.type == x
            assert str(one.scales.results[0].type) == "tensor<3x?x2xi8>"


def test_int8_is_found() -> None:
    """As MX formats are; what is like it in part is not."""
    text = program({"int8": quantize_int8}, (3, 64))
    other = text.replace("1.270000e+02", "1.260000e+02")
    assert other != text
    for source, wanted in ((text, 1), (other, 0)):
        with new_context():
            module = ir.Module.parse(source)
            run(("canonicalize", "cse"), module)
            every = linalg_operations(module.operation)
            found = [one for op in every if (one := match_int8_quantization(op)) is not None]
            assert len(found) == wanted
            for one in found:
                assert str(one.x.type) == "tensor<3x64xf32>"
                assert str(one.codes.results[0].type) == "tensor<3x2x32xi8>"
                assert str(one.scales.results[0].type) == "tensor<3x2xf32>"


def test_rows_may_be_dynamic() -> None:
    dynamic = -(2**63)
    text = program(
        {"int8": quantize_int8, "mxfp4": lambda x: quantize_mx(x, "mxfp4", "floor")},
        (dynamic, 3, 64),
    )
    assert "tensor<?x3x2x32xi8>" in text
    assert "tensor<?x3x2x32xf4E2M1FN>" in text


@pytest.mark.parametrize(
    ("shape", "build", "error", "message"),
    [
        ((4, 48), quantize_int8, ValueError, "K a multiple of 32"),
        ((4, 64), lambda x: quantize_mx(x, "nvfp4", "even"), FormatError, "to nvfp4; choose mxfp4"),
        (
            (4, 64),
            lambda x: quantize_mx(x, "mxfp4", "nearest"),
            FormatError,
            "unknown scale recipe",
        ),
    ],
)
def test_refusals(
    shape: tuple[int, ...], build: Quantize, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        program({"f": build}, shape)
