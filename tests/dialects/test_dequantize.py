"""What a scalar form means, and whether a type holds every value of it, over every code and scale.

Against ml_dtypes, and as IREE compiles it against the reference in numpy.
"""

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools
from iree.compiler.dialects import func

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.dequantize import extend, is_exact, read_factor
from mxc.dialects.generic import generic
from mxc.formats.formats import FORMATS
from mxc.formats.reference import Quantized, dequantize

ELEMENTS = {
    "i8": np.int8,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn,
    "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}
SCALES = {"f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "f8E4M3FN": ml_dtypes.float8_e4m3fn}
RESULTS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
WIDTHS = {"f4E2M1FN": 4, "f6E2M3FN": 6, "f6E3M2FN": 6}
PAIRS = [*((e, "f8E8M0FNU") for e in ELEMENTS), ("f4E2M1FN", "f8E4M3FN")]


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize(("element", "scale"), PAIRS)
def test_exactness(element: str, scale: str, result: str) -> None:
    codes = np.arange(1 << WIDTHS.get(element, 8), dtype=np.uint8)
    elements = codes.view(ELEMENTS[element]).astype(np.float32)
    elements /= 64 if element == "i8" else 1
    scales = np.arange(256, dtype=np.uint8).view(SCALES[scale]).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values = elements[:, None] * scales[None, :]
        held = values.astype(RESULTS[result]).astype(np.float32)
    with new_context():
        types = [ir.Type.parse(name) for name in (element, scale, result)]
        assert is_exact(*types) == np.array_equal(values, held, equal_nan=True)


def test_an_int8_under_a_float_is_what_f32_makes_of_it() -> None:
    with new_context():
        i8, f32, bf16 = (ir.Type.parse(name) for name in ("i8", "f32", "bf16"))
        assert is_exact(i8, f32, f32)
        assert not is_exact(i8, f32, bf16)


FORM = """
%b = tensor.empty() : tensor<4xi8>
%s = tensor.empty() : tensor<4x{scale}>
%o = tensor.empty() : tensor<4x{result}>
linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
                                 affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
  ins(%b, %s : tensor<4xi8>, tensor<4x{scale}>) outs(%o : tensor<4x{result}>) {{
^bb0(%i: i8, %e: {scale}, %out: {result}):
  %step = arith.constant {step} : {result}
  %n = arith.sitofp %i : i8 to {result}
  {scaled}
  linalg.yield %y : {result}
}} -> tensor<4x{result}>"""
EXTENDED = "%x = arith.extf %e : f8E8M0FNU to {result}\n"
#: How frontends may write an i8 element: the lines, and whether the value is exact; None: no form.
WRITTEN = {
    "as built": ("%p = arith.mulf %n, %step : {result}\n%y = arith.mulf %p, %x : {result}", True),
    "turned": ("%p = arith.mulf %step, %n : {result}\n%y = arith.mulf %x, %p : {result}", True),
    "step with scale": (
        "%p = arith.mulf %x, %step : {result}\n%y = arith.mulf %n, %p : {result}",
        True,
    ),
    "step last": ("%p = arith.mulf %n, %x : {result}\n%y = arith.mulf %p, %step : {result}", False),
    "no step": ("%y = arith.mulf %n, %x : {result}", None),
    "twice the scale": (
        "%p = arith.mulf %n, %x : {result}\n%y = arith.mulf %p, %x : {result}",
        None,
    ),
}


def read(text: str) -> tuple[int, int | None, bool] | None:
    with new_context():
        module = ir.Module.parse(text)
        body = list(module.body.operations)[-1].operation.regions[0].blocks[0]
        found = read_factor(list(body.operations)[-1].operands[0])
        return None if found is None else (found.element, found.scale, found.exact)


@pytest.mark.parametrize("result", ["f32", "bf16"])
@pytest.mark.parametrize("name", WRITTEN)
def test_mxint8_as_frontends_write_it(name: str, result: str) -> None:
    lines, exact = WRITTEN[name]
    form = FORM.replace("{scaled}", EXTENDED + lines)
    text = form.format(scale="f8E8M0FNU", result=result, step=repr(2.0**-6))
    assert read(text) == (None if exact is None else (0, 1, exact))
    # Another constant is another number format.
    if exact is not None:
        assert read(text.replace(repr(2.0**-6), repr(2.0**-7))) is None


def test_int8_a_block_as_frontends_write_it() -> None:
    for line in ("%y = arith.mulf %n, %e : f32", "%y = arith.mulf %e, %n : f32"):
        form = FORM.replace("{scaled}", line)
        assert read(form.format(scale="f32", result="f32", step=1.0)) == (0, 1, True)


def test_mxint8_as_compiled_is_the_reference() -> None:
    """Every code under every scale. Where workers flush subnormals, a zero is all that is left."""
    kind = ir.RankedTensorType.get
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, i8 = ir.F32Type.get(), ir.IntegerType.get_signless(8)
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(kind([256, 256], i8), kind([256], i8))
            def main(elements: ir.Value, bytes: ir.Value) -> ir.Value:
                scales = unpack(bytes, ir.Float8E8M0FNUType.get())
                return generic([(elements, "s e"), (scales, "s")], "s e", f32, extend)

        text = str(module)
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    blob = tools.compile_str(text, extra_args=[*flags, "--iree-llvmcpu-target-cpu=host"])
    context = rt.SystemContext(config=rt.Config("local-task"))
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    codes = np.repeat(np.arange(256, dtype=np.uint8)[None], 256, axis=0)
    scales = np.arange(256, dtype=np.uint8)
    found = context.modules.module.main(codes.view(np.int8), scales.view(np.int8)).to_host()
    format = FORMATS["mxint8"]
    q = Quantized(codes, scales[:, None].repeat(8, axis=1), format, None, 1, codes.shape)
    wanted = dequantize(q)
    # All that a block of scale 2^-127 holds: an f32 that is subnormal itself.
    small = (np.abs(wanted) < 2.0**-126) | (scales == 0)[:, None]
    np.testing.assert_array_equal(found[~small], wanted[~small])
    assert ((found == wanted) | (found == 0))[small].all()
    assert np.isnan(found[255]).all()
