"""Kernels that convert MX blocks to MX blocks of another format, on the simulator, against the
reference."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.recast import mx_cast, transpose_requantize
from mxc.formats.formats import FORMATS
from mxc.formats.packing import decode_elements
from mxc.formats.reference import Quantized, dequantize, quantize

ROWS, DEPTH = 96, 3 * 32
#: Source, result and recipe: elements of all sizes.
CASTS = [
    ("mxfp8e4m3", "mxfp4", "even"),
    ("mxfp4", "mxfp8e5m2", "floor"),
    ("mxfp8e5m2", "mxfp6e2m3", "rceil"),
    ("mxfp6e2m3", "mxfp8e4m3", "rceil"),
    ("mxfp6e3m2", "mxfp4", "ceil"),
    ("mxfp4", "mxfp6e3m2", "even"),
]
#: Floats [ROWS, 70] that become blocks along the first dimension.
FLOATS = [("float32", "mxfp6e2m3", "rceil"), ("bfloat16", "mxfp8e4m3", "floor")]
#: Formats that are transposed; IREE cannot load elements of 6 bits.
TRANSPOSED = ("mxfp4", "mxfp8e4m3", "mxfp8e5m2")


def build(source: str, to: str, recipe: str) -> None:
    """Build two functions on bytes: `cast_source_to`, and `transposed_source_to`."""
    byte = ir.IntegerType.get_signless(8)
    shape = [ROWS, DEPTH // 32]
    kinds = [
        ir.RankedTensorType.get(sizes, byte)
        for sizes in ([*shape, FORMATS[source].block_bytes], shape)
    ]
    casts = {"cast": mx_cast, "transposed": transpose_requantize}
    for name, cast in casts.items() if source in TRANSPOSED else [("cast", mx_cast)]:

        def body(elements: ir.Value, scales: ir.Value, cast: Any = cast) -> tuple[ir.Value, ...]:
            element, scale = (ir.Type.parse(FORMATS[source].element.mlir), "f8E8M0FNU")
            found = cast(
                unpack(elements, element), unpack(scales, ir.Type.parse(scale)), to, recipe
            )
            return tuple(v if element_of(v) == byte else pack(v) for v in found)

        func.FuncOp.from_py_func(*kinds, name=f"{name}_{source}_{to}")(body)


def build_floats(kind: str, to: str, recipe: str) -> None:
    element = {"float32": ir.F32Type, "bfloat16": ir.BF16Type}[kind].get()

    def body(x: ir.Value) -> tuple[ir.Value, ...]:
        turned = generic([(x, "m k")], "k m", element, lambda value: value)
        found = quantize_mx(turned, to, recipe)
        return tuple(v if str(element_of(v)) == "i8" else pack(v) for v in found)

    func.FuncOp.from_py_func(ir.RankedTensorType.get([ROWS, 70], element), name=f"floats_{to}")(
        body
    )


@pytest.fixture(scope="module")
def compiled(watched: Callable[[str], Any]) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in CASTS:
                build(*case)
            for floats in FLOATS:
                build_floats(*floats)
        return watched(str(module))


def blocks(name: str) -> Quantized:
    """Draw random elements under every scale byte; some elements are Inf or NaN."""
    rng = np.random.default_rng(len(name))
    elements = rng.integers(0, 256, (ROWS, DEPTH * FORMATS[name].element.bits // 8), np.uint8)
    scales = np.resize(rng.permutation(256).astype(np.uint8), (ROWS, DEPTH // 32))
    if FORMATS[name].element.bits == 8:
        # Only every ninth row keeps Inf and NaN, each of which makes its whole block NaN.
        special = ~np.isfinite(decode_elements(elements, name))
        special[::9] = False
        elements[special] = 0x11
    return Quantized(elements, scales, FORMATS[name], None, 1, (ROWS, DEPTH))


@pytest.mark.parametrize(("source", "to", "recipe"), CASTS)
def test_a_cast_is_one_kernel(source: str, to: str, recipe: str, compiled: Any) -> None:
    given = blocks(source)
    elements = given.elements.reshape(ROWS, DEPTH // 32, -1)
    found = compiled.call(f"cast_{source}_{to}", elements.view(np.int8), given.scales.view(np.int8))
    wanted = quantize(dequantize(given), to, recipe=recipe)
    np.testing.assert_array_equal(found[1], wanted.scales)
    np.testing.assert_array_equal(found[0].reshape(wanted.elements.shape), wanted.elements)
    assert len(np.unique(wanted.scales)) > 100


@pytest.mark.parametrize(
    ("source", "to", "recipe"), [case for case in CASTS if case[0] in TRANSPOSED]
)
def test_transposed(source: str, to: str, recipe: str, compiled: Any) -> None:
    given = blocks(source)
    elements = given.elements.reshape(ROWS, DEPTH // 32, -1)
    found = compiled.call(
        f"transposed_{source}_{to}", elements.view(np.int8), given.scales.view(np.int8)
    )
    wanted = quantize(dequantize(given), to, recipe=recipe, axis=0)
    np.testing.assert_array_equal(found[1], wanted.scales)
    np.testing.assert_array_equal(found[0].reshape(wanted.elements.shape), wanted.elements)


@pytest.mark.parametrize(("kind", "to", "recipe"), FLOATS)
def test_floats_transposed(kind: str, to: str, recipe: str, compiled: Any) -> None:
    """Along the rows, of which a lane has one or two columns; the last lanes have none."""
    x = np.random.default_rng(4).normal(0, 1, (ROWS, 2 * 35)).astype(np.float32)
    x = (x * np.exp2(np.arange(ROWS) // 32 * 100 - 126, dtype=np.float32)[:, None]).astype(
        ml_dtypes.bfloat16 if kind == "bfloat16" else np.float32
    )
    x[40, 3], x[70, 69] = np.nan, np.inf
    found = compiled.call(f"floats_{to}", x)
    wanted = quantize(x, to, recipe=recipe, axis=0)
    np.testing.assert_array_equal(found[1], wanted.scales)
    np.testing.assert_array_equal(found[0].reshape(wanted.elements.shape), wanted.elements)


def test_refusals() -> None:
    with new_context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        element, scale = (ir.Type.parse(name) for name in ("f4E2M1FN", "f8E8M0FNU"))

        def empty(sizes: list[int], kind: ir.Type) -> ir.Value:
            return ir.Operation.create(
                "tensor.empty", results=[ir.RankedTensorType.get(sizes, kind)]
            ).result

        elements, scales = empty([4, 2, 32], element), empty([4, 2], scale)
        with pytest.raises(ValueError, match=r"wanted elements \[.., KO, 32\]"):
            mx_cast(elements, empty([4, 3], scale), "mxfp4", "even")
        with pytest.raises(ValueError, match="K a multiple of 32"):
            transpose_requantize(elements, scales, "mxfp4", "even")
        with pytest.raises(ValueError, match=r"\[M, KO, 32\] to transpose"):
            transpose_requantize(
                empty([1, 4, 2, 32], element), empty([1, 4, 2], scale), "mxfp4", "even"
            )
