"""Kernels that quantize activations, on the simulator, bit for bit as the reference in numpy."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of
from mxc.dialects.quantize import quantize_mx
from mxc.formats.formats import FORMATS, ElementFormat
from mxc.formats.recipes import ScaleRecipe, addend
from mxc.formats.reference import quantize
from mxc.passes.base import run
from mxc.passes.lower_quantize_to_gpu_kernels import LowerQuantizeToGpuKernels
from mxc.simulator.run.translate import TranslatedKernel

Array = npt.NDArray[np.generic]
#: CONVERTED: formats of float elements, to which gfx950 has conversions. NAMES adds mxint8, to
#: which it has none.
CONVERTED = [name for name, format in FORMATS.items() if format.element.exponent]
CONVERTED.remove("nvfp4")
NAMES = [*CONVERTED, "mxint8"]
CASES = [(name, recipe) for name in NAMES for recipe in ScaleRecipe]
F32 = (73, 5 * 32)
SHORT = (3, 25, 2 * 32)


def edges(element: ElementFormat, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return float32 [.., 32] with zeros, subnormals, Inf, NaN and ties, and with block maxima on
    both sides of each change of the scale."""
    rows = [np.full(32, value, np.float32) for value in (0.0, -0.0, np.inf, -np.inf, np.nan)]
    mixed = rng.normal(0, 1, (6, 32)).astype(np.float32)
    mixed[0, 3], mixed[1, 30], mixed[2, [0, 31]] = np.inf, np.nan, (np.inf, -np.nan)
    mixed[3, 7], mixed[4, 8] = -np.inf, 3.4e38
    mixed[5] *= 2.0**-126
    rows += [*mixed, *np.ldexp(mixed, -130), np.full(32, 1e-45, np.float32)]
    # Midpoints of adjacent numbers, a number beyond the largest, and the floats next to these.
    finite = element.values[: element.max_code + 1].astype(np.float64)
    ties = np.append((finite[1:] + finite[:-1]) / 2, finite[-1] * 1.25).astype(np.float32)
    ties = np.concatenate([np.nextafter(ties, 0), ties, np.nextafter(ties, np.float32(np.inf))])
    ties = np.resize(np.concatenate([ties, -ties]), (-(-len(ties) // 15), 31))
    largest = np.full((len(ties), 1), element.max, np.float32)
    rows += [*np.hstack([ties, largest]), *np.hstack([np.ldexp(largest, -126), ties * 2.0**-126])]
    # The magnitudes at which a recipe changes from one scale to the next.
    for recipe in ScaleRecipe:
        k_step = (1 << 23) - addend(element, recipe)
        for exponent in (1, 2, 127, 254 - element.emax, 254):
            for bits in (exponent << 23 | k_step & 0x7FFFFF) + np.arange(-1, 2):
                row = rng.uniform(-1, 1, 32).astype(np.float32)
                row *= np.uint32(bits).view(np.float32)
                row[rng.integers(32)] = np.uint32(bits).view(np.float32)
                rows.append(row)
    return np.asarray(rows, np.float32)


def floats(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return `edges` of a format, then blocks of random exponents; in half of the blocks, the
    floats have only the upper bits of the mantissa."""
    rng = np.random.default_rng(len(name))
    count = int(np.prod(shape)) // 32
    bits = rng.integers(0, 1 << 32, (count, 32), dtype=np.uint64).astype(np.uint32)
    bits[::2] &= np.uint32(0xFFF80000)
    spread = rng.integers(0, 12, (count, 32)) * rng.integers(0, 4, (count, 1))
    exponent = np.maximum(rng.integers(0, 255, (count, 1)) - spread, 0)
    bits = bits & np.uint32(0x807FFFFF) | exponent.astype(np.uint32) << np.uint32(23)
    x = bits.view(np.float32)
    first = edges(FORMATS[name].element, rng)[:count]
    x[: len(first)] = first
    return x.reshape(shape)


def program(cases: list[tuple[str, ScaleRecipe, str]]) -> str:
    """Return a program with a function for each case: floats -> elements and scales, as bytes."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        for name, recipe, kind in cases:
            shape = F32 if kind == "f32" else SHORT
            x = ir.RankedTensorType.get(list(shape), ir.Type.parse(kind))
            with ir.InsertionPoint(module.body):

                def build(
                    x: ir.Value, name: str = name, recipe: str = recipe
                ) -> tuple[ir.Value, ...]:
                    found = quantize_mx(x, name, recipe)
                    return tuple(v if str(element_of(v)) == "i8" else pack(v) for v in found)

                func.FuncOp.from_py_func(x, name=f"{name}_{recipe}_{kind}")(build)
        return str(module)


@pytest.fixture(scope="module")
def compiled(watched: Callable[[str], Any]) -> Any:
    cases = [(*case, "f32") for case in CASES]
    short = [(name, ScaleRecipe.EVEN, kind) for name in NAMES for kind in ("bf16", "f16")]
    return watched(program([*cases, *short]))


def check(compiled: Any, x: Array, name: str, recipe: ScaleRecipe) -> None:
    """Assert that one kernel gives the bytes of the reference, by the expected instructions."""
    kind = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[x.dtype.name]
    elements, scales = compiled.call(f"{name}_{recipe}_{kind}", x)
    wanted = quantize(x, name, recipe=recipe)
    np.testing.assert_array_equal(scales, wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)
    assert {0, 0xFF} < set(scales.reshape(-1).tolist())

    program = TranslatedKernel(compiled.kernel).instructions
    names = [instruction.name for instruction in program]
    bits = FORMATS[name].element.bits
    loads = {("f32", 4): 2, ("f32", 8): 2, ("f32", 6): 4, ("bf16", 6): 2, ("f16", 6): 2}.get(
        (kind, bits), 1
    )
    memory = [n for n in names if n.startswith(("buffer_", "global_", "ds_", "scratch_", "flat_"))]
    stores = {4: "dword", 6: "dwordx3", 8: "dwordx2"}
    assert memory == [
        *["buffer_load_dwordx4"] * loads,
        f"buffer_store_{stores[bits]}",
        "buffer_store_byte",
    ]
    modes = [at for at, n in enumerate(names) if n.startswith("s_setreg")]
    converts = [at for at, n in enumerate(names) if n.startswith("v_cvt_scalef32_")]
    if name not in CONVERTED:
        assert not modes
        assert not converts
        return
    converted = min(converts)
    assert len(modes) == (bits == 8)
    assert all(at < converted for at in modes)


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_floats_become_what_the_reference_says(
    name: str, recipe: ScaleRecipe, compiled: Any
) -> None:
    check(compiled, floats(name, F32), name, recipe)


@pytest.mark.parametrize("name", NAMES)
def test_bfloats_are_read_as_they_are(name: str, compiled: Any) -> None:
    upper = (floats(name, SHORT).view(np.uint32) >> 16).astype(np.uint16)
    check(compiled, upper.view(ml_dtypes.bfloat16), name, ScaleRecipe.EVEN)


@pytest.mark.parametrize("name", NAMES)
def test_halves_are_read_as_they_are(name: str, compiled: Any) -> None:
    """A block for the bits of each f16: subnormal ones, infinities and NaN too."""
    bits = np.random.default_rng(6).integers(0, 1 << 16, SHORT).astype(np.uint16)
    bits[0] &= 0x83FF
    bits[1] &= 0xBFFF
    bits[2, 0, :32] = 0
    check(compiled, bits.view(np.float16), name, ScaleRecipe.EVEN)


@pytest.fixture(scope="module")
def by_integers(watched: Callable[..., Any]) -> Any:
    cases = [(name, ScaleRecipe.FLOOR, "f32") for name in NAMES]
    cases.append(("mxfp4", ScaleRecipe.RCEIL, "bf16"))
    return watched(program(cases), target="gfx942")


@pytest.mark.parametrize("name", NAMES)
def test_integers_give_the_same_where_nothing_converts(name: str, by_integers: Any) -> None:
    x = floats(name, F32)
    elements, scales = by_integers.call(f"{name}_floor_f32", x)
    wanted = quantize(x, name, recipe=ScaleRecipe.FLOOR)
    np.testing.assert_array_equal(scales, wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)


def test_integers_of_bfloats(by_integers: Any) -> None:
    upper = (floats("mxfp4", SHORT).view(np.uint32) >> 16).astype(np.uint16)
    x = upper.view(ml_dtypes.bfloat16)
    elements, scales = by_integers.call("mxfp4_rceil_bf16", x)
    wanted = quantize(x, "mxfp4", recipe=ScaleRecipe.RCEIL)
    np.testing.assert_array_equal(scales, wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)


@pytest.mark.parametrize("name", ["mxfp6e2m3", "mxfp6e3m2"])
def test_a_conversion_of_many_passes_overwrites_no_source(name: str, compiled: Any) -> None:
    """composable_kernel works around a compiler that gave v_cvt_scalef32_2xpk16 such registers."""
    compiled.call(f"{name}_even_f32", floats(name, F32))
    (found,) = (i for i in TranslatedKernel(compiled.kernel).instructions if "2xpk16" in i.name)
    written, *read = (set(o.registers()) for o in (*found.results, *found.operands))
    assert [len(each) for each in (written, *read)] == [6, 16, 16, 1]
    assert not any(written & each for each in read)


def blocks_of_16(text: str) -> str:
    return text.replace("4x2x32x", "4x4x16x").replace("4x2x", "4x4x").replace("2, 32]", "4, 16]")


@pytest.mark.parametrize(
    ("change", "lowered"),
    [
        (lambda text: text, True),
        (lambda text: text.replace("2097152 : i32", "2097153 : i32"), False),
        (lambda text: text.replace("constant 254 : i32", "constant 253 : i32"), False),
        (lambda text: text.replace("maxsi", "minsi"), False),
        (blocks_of_16, False),
    ],
    ids=["ours", "threshold", "clamp", "least", "block"],
)
def test_only_what_is_known_is_lowered(change: Callable[[str], str], lowered: bool) -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            x = ir.RankedTensorType.get([4, 64], ir.F32Type.get())
            func.FuncOp.from_py_func(x, name="f")(lambda x: quantize_mx(x, "mxfp4", "even"))
        text = str(module)
        assert (change(text) == text) == lowered
        module = ir.Module.parse(change(text))
        run((LowerQuantizeToGpuKernels(),), module)
        assert ("flow.dispatch" in str(module)) == lowered
