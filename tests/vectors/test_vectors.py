"""All that quantizes or dequantizes here, on the golden vectors: bit for bit."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools
from iree.compiler.dialects import func
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.quantize.blocks import BlockKernel
from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of
from mxc.dialects.quantize import MX_FORMATS, quantize_mx
from mxc.formats.formats import FORMATS
from mxc.formats.nvfp4 import quantize_blocks, tensor_scale
from mxc.formats.packing import pack_elements, unpack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import Quantized, dequantize, quantize
from mxc.formats.rounding import Ties
from mxc.passes.base import run
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.passes.lower_quantize_to_cpu_kernels import LowerQuantizeToCpuKernels
from mxc.simulator.simulate import simulate
from mxc.targets.target import target
from tests.vectors.mx_vectors import ELEMENTS, HERE, KINDS, RECIPES, TIES, make

each_mx = pytest.mark.parametrize("name", ELEMENTS)
each_recipe = pytest.mark.parametrize("recipe", RECIPES)


def load(name: str) -> dict[str, NDArray[Any]]:
    with np.load(HERE / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def inputs(vectors: dict[str, NDArray[Any]]) -> NDArray[Any]:
    return vectors["x"].view(np.float32)


@pytest.mark.parametrize("name", [*ELEMENTS, "nvfp4"])
def test_the_script_makes_the_files(name: str) -> None:
    found, wanted = load(name), make(name)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array, key)


def test_the_files_are_small_and_hold_all_kinds() -> None:
    assert sum(path.stat().st_size for path in HERE.glob("*.npz")) < 2 << 20
    for name in ELEMENTS:
        assert set(load(name)["kind"]) == set(range(len(KINDS)))


@each_mx
@each_recipe
def test_the_reference_quantizes(name: str, recipe: str) -> None:
    vectors = load(name)
    for ties in TIES:
        q = quantize(inputs(vectors), name, recipe=recipe, ties=ties)
        np.testing.assert_array_equal(q.scales[:, 0], vectors[f"scales_{recipe}"])
        codes = unpack_elements(q.elements, name)
        np.testing.assert_array_equal(codes, vectors[f"codes_{recipe}_{ties}"])


def bits_with_one_nan(values: NDArray[Any]) -> NDArray[Any]:
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


@pytest.mark.parametrize("name", FORMATS)
def test_the_reference_dequantizes_every_code_under_every_scale(name: str) -> None:
    wanted, format = load(name)["values"], FORMATS[name]
    rows, count = wanted.shape
    depth = max(count, format.block)
    codes = np.broadcast_to(np.arange(depth) % count, (rows, depth)).astype(np.uint8)
    scales = np.arange(rows, dtype=np.uint8)[:, None].repeat(depth // format.block, 1)
    whole = 1.0 if format.tensor_scale else None
    q = Quantized(pack_elements(codes, format), scales, format, None, 1, codes.shape, whole)
    np.testing.assert_array_equal(bits_with_one_nan(dequantize(q))[:, :count], wanted)


def test_nvfp4_in_both_conventions() -> None:
    vectors, format = load("nvfp4"), FORMATS["nvfp4"]
    for prefix, reciprocal in (("", False), ("reciprocal_", True)):
        for number, x in enumerate(inputs(vectors)):
            whole = tensor_scale(np.abs(x).max(), format, reciprocal=reciprocal)
            assert whole.number == vectors[f"{prefix}tensor_scale"][number]
            for ties in TIES:
                codes, scales = quantize_blocks(x, whole, format, Ties(ties))
                np.testing.assert_array_equal(scales, vectors[f"{prefix}scales"][number])
                np.testing.assert_array_equal(codes, vectors[f"{prefix}codes_{ties}"][number])


@each_mx
def test_the_kernel_of_mxc_quantize(name: str) -> None:
    """On the blocks whose numbers are finite and all of bfloat16."""
    vectors = load(name)
    x = inputs(vectors)
    usable = (vectors["x"] & 0xFFFF == 0).all(1) & np.isfinite(x).all(1)
    assert usable.sum() > 20
    words = x[usable].astype(ml_dtypes.bfloat16).view(np.uint16)
    for recipe in RECIPES:
        for ties in TIES:
            kernel = BlockKernel(FORMATS[name], ScaleRecipe(recipe), Ties(ties))
            elements, scales, _ = kernel.run(words)
            np.testing.assert_array_equal(scales, vectors[f"scales_{recipe}"][usable])
            codes = unpack_elements(elements, name)
            np.testing.assert_array_equal(codes, vectors[f"codes_{recipe}_{ties}"][usable])


HOST = iree.resolve(target("cpu"))
CASES = [(name, recipe) for name in MX_FORMATS for recipe in RECIPES]
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def program() -> str:
    """Kernels for each format and recipe: f32 [n, 32] -> elements and scales as bytes."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()

        def outside(value: ir.Value) -> ir.Value:
            return value if str(element_of(value)) == "i8" else pack(value)

        def define(name: str, recipe: str) -> None:
            kind = ir.RankedTensorType.get([len(load(name)["x"]), 32], ir.F32Type.get())

            @func.FuncOp.from_py_func(kind, name=f"{name}_{recipe}")
            def _(x: ir.Value) -> tuple[ir.Value, ir.Value]:
                elements, scales = quantize_mx(x, name, recipe)
                return outside(elements), outside(scales)

        with ir.InsertionPoint(module.body):
            for case in CASES:
                define(*case)
        isa = best_isa(HOST)
        assert isa is not None
        run([LowerQuantizeToCpuKernels(isa=isa)], module)
        assert "linalg" not in str(module)
        return str(module)


@pytest.fixture(scope="module")
def compiled() -> Callable[..., list[np.ndarray]]:
    blob = tools.compile_str(program(), extra_args=[*FLAGS])
    context = rt.SystemContext(config=rt.Config("local-task"))
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    module = context.modules.module
    return lambda name, x: [each.to_host().view(np.uint8) for each in module[name](x)]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_compiled_programs_on_this_cpu(
    compiled: Callable[..., list[np.ndarray]], name: str, recipe: str
) -> None:
    vectors = load(name)
    elements, scales = compiled(f"{name}_{recipe}", inputs(vectors))
    np.testing.assert_array_equal(scales[:, 0], vectors[f"scales_{recipe}"])
    codes = unpack_elements(elements.reshape(len(scales), -1), name)
    np.testing.assert_array_equal(codes, vectors[f"codes_{recipe}_even"])


PAIRS = {"mxfp4": "fp4", "mxfp8e4m3": "fp8", "mxfp8e5m2": "bf8"}
BLOCKS = {"mxfp6e2m3": "fp6", "mxfp6e3m2": "bf6"}
#: gfx950: each work item has a pair of numbers and the scale of their block.
NARROW_PAIR = """
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
s_lshl_b32 s6, s6, 6
v_add_u32 v0, s6, v0
v_lshlrev_b32 v1, 4, v0
global_load_dwordx4 v[4:7], v1, s[2:3]
s_waitcnt vmcnt(0)
v_mov_b32 v8, 0
v_cvt_scalef32_pk_{small}_f32 v8, v4, v5, v6
v_lshlrev_b32 v1, 2, v0
global_store_dword v1, v8, s[4:5]
s_endpgm
"""


@pytest.mark.parametrize("name", PAIRS)
@each_recipe
def test_scaled_conversions_of_gfx950_narrow_pairs(name: str, recipe: str) -> None:
    vectors = load(name)
    scales, codes = vectors[f"scales_{recipe}"], vectors[f"codes_{recipe}_even"]
    usable = scales != 0xFF  # under NaN the hardware writes codes of its own
    x = inputs(vectors)[usable].reshape(-1, 2)
    rows = np.zeros((-(-len(x) // 64) * 64, 4), np.uint32)
    rows[: len(x), :2] = x.view(np.uint32)
    rows[: len(x), 2] = scales[usable].astype(np.uint32).repeat(16) << 23
    words = np.zeros(len(rows), np.uint32)
    text = NARROW_PAIR.format(small=PAIRS[name])
    groups = (len(rows) // 64, 1, 1)
    found = simulate(text, groups, [rows, words], workgroup=(64, 1, 1))[1][: len(x)]
    width = FORMATS[name].element.bits
    pairs = np.stack([found, found >> width], 1) & ((1 << width) - 1)
    np.testing.assert_array_equal(pairs, codes[usable].reshape(-1, 2))


def narrow_block(small: str) -> str:
    """gfx950: each work item has a block, its even elements before its odd ones, and its scale."""
    loads = "\n".join(
        f"global_load_dwordx4 v[{8 + 4 * n}:{11 + 4 * n}], v1, s[2:3] offset:{16 * n}"
        for n in range(9)
    )
    return f"""
s_lshl_b32 s6, s6, 6
v_add_u32 v0, s6, v0
v_mul_u32_u24 v1, 144, v0
{loads}
s_waitcnt vmcnt(0)
v_cvt_scalef32_2xpk16_{small}_f32 v[48:53], v[8:23], v[24:39], v40
v_mul_u32_u24 v1, 24, v0
global_store_dwordx2 v1, v[48:49], s[4:5]
global_store_dwordx2 v1, v[50:51], s[4:5] offset:8
global_store_dwordx2 v1, v[52:53], s[4:5] offset:16
s_endpgm
"""


@pytest.mark.parametrize("name", BLOCKS)
@each_recipe
def test_scaled_conversions_of_gfx950_narrow_blocks(name: str, recipe: str) -> None:
    vectors = load(name)
    scales, codes = vectors[f"scales_{recipe}"], vectors[f"codes_{recipe}_even"]
    usable = scales != 0xFF
    x = inputs(vectors)[usable].view(np.uint32)
    rows = np.zeros((-(-len(x) // 64) * 64, 36), np.uint32)
    rows[: len(x), :16], rows[: len(x), 16:32] = x[:, ::2], x[:, 1::2]
    rows[: len(x), 32] = scales[usable].astype(np.uint32) << 23
    packed = np.zeros((len(rows), 24), np.uint8)
    text = narrow_block(BLOCKS[name])
    groups = (len(rows) // 64, 1, 1)
    found = simulate(text, groups, [rows, packed], workgroup=(64, 1, 1))[1][: len(x)]
    np.testing.assert_array_equal(unpack_elements(found, name), codes[usable])


#: Each work item has two codes in its low bits, and a scale.
WIDEN = """
s_lshl_b32 s6, s6, 6
v_add_u32 v0, s6, v0
v_lshlrev_b32 v1, 3, v0
global_load_dwordx2 v[4:5], v1, s[2:3]
s_waitcnt vmcnt(0)
v_cvt_scalef32_pk_f32_{small} v[8:9], v4, v5
global_store_dwordx2 v1, v[8:9], s[4:5]
s_endpgm
"""


@pytest.mark.parametrize("name", PAIRS)
def test_scaled_conversions_of_gfx950_widen_every_code_under_every_scale(name: str) -> None:
    wanted = load(name)["values"]
    width = FORMATS[name].element.bits
    low, high = np.arange(wanted.shape[1]).reshape(-1, 2).T
    pairs = np.zeros((256, len(low), 2), np.uint32)
    pairs[..., 0] = low | high << width
    pairs[..., 1] = np.arange(256, dtype=np.uint32)[:, None] << 23
    rows = pairs.reshape(-1, 2)
    results = np.zeros_like(rows)
    text = WIDEN.format(small=PAIRS[name])
    found = simulate(text, (len(rows) // 64, 1, 1), [rows, results], workgroup=(64, 1, 1))[1]
    np.testing.assert_array_equal(bits_with_one_nan(found.view(np.float32)), wanted.reshape(-1, 2))
