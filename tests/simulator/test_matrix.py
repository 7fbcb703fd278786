"""Matrix instructions against float64 products, with fragments filled lane by lane.

The places are those of AMD's article "Matrix Core Programming on AMD CDNA3 and CDNA4
architecture", whose kernels say in C which element each thread loads, and of composable_kernel's
test on hardware (test/mx_mfma_op/mx_mfma_op.hpp): written out here once more, as loops.
"""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.runtime.simulator.instruction import Instruction, Operand
from mxc.runtime.simulator.memory import Bytes, Memory
from mxc.runtime.simulator.mfma import mfma_step
from mxc.runtime.simulator.operations import Array
from mxc.runtime.simulator.state import Waves

FORMS = ("fp8", "bf8", "fp6", "bf6", "fp4")
DTYPES = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "i8": np.int8,
}
WIDTH = {
    "fp8": 8,
    "bf8": 8,
    "fp6": 6,
    "bf6": 6,
    "fp4": 4,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "i8": 8,
}


def codes(rng: np.random.Generator, form: str, rows: int, depth: int) -> NDArray[Any]:
    """Bits of random finite elements, and the numbers that they are."""
    if form == "i8":
        numbers = rng.integers(-128, 128, (rows, depth)).astype(np.int8)
    else:
        numbers = rng.normal(0, 1, (rows, depth)).astype(np.float32).astype(DTYPES[form])
    kind = {8: np.uint8, 6: np.uint8, 4: np.uint8, 16: np.uint16, 32: np.uint32}[WIDTH[form]]
    return numbers.view(kind)


def numbers(bits: NDArray[Any], form: str) -> NDArray[np.float64]:
    return bits.view(DTYPES[form]).astype(np.float64)


def places(rows: int, depth: int, form: str, chunked: bool) -> list[tuple[int, list[int]]]:
    """For each lane its row and the K of its elements, in order."""
    found = []
    for lane in range(64):
        group, count = lane // rows, depth * rows // 64
        if chunked and form in ("fp8", "bf8"):
            ks = [part * (depth // 2) + group * 16 + j for part in range(2) for j in range(16)]
        else:
            ks = [group * count + j for j in range(count)]
        found.append((lane % rows, ks))
    return found


def fragment(bits: NDArray[Any], form: str, chunked: bool) -> Array:
    """Registers [64, n] of a fragment."""
    rows, depth = bits.shape
    width = WIDTH[form]
    lanes = []
    for row, ks in places(rows, depth, form, chunked):
        packed = sum(int(bits[row, k]) << width * n for n, k in enumerate(ks))
        size = max(4, width * len(ks) // 8)
        lanes.append(np.frombuffer(packed.to_bytes(size, "little"), np.uint32))
    return np.stack(lanes)


def waves() -> Waves:
    none = Bytes(np.zeros(4, np.uint8))
    return Waves(1, 96, 32, Memory(), none, none)


def put(w: Waves, bank: str, first: int, lanes: Array) -> Operand:
    for n in range(lanes.shape[1]):
        w.bank(bank)[first + n] = np.ascontiguousarray(lanes[None, :, n], np.uint32)
    return Operand(bank, first, lanes.shape[1])


def result(w: Waves, operand: Operand, rows: int) -> Array:
    """The rows x rows result, read lane by lane."""
    out = np.zeros((rows, rows), np.uint32)
    for lane in range(64):
        for r in range(operand.count):
            row = 4 * (lane // 16) + r if rows == 16 else 8 * (r // 4) + 4 * (lane // 32) + r % 4
            register = np.broadcast_to(w.bank(operand.bank)[operand.index + r], (1, 64))
            out[row, lane % rows] = register[0, lane]
    return out


def constant(operand: Operand) -> Array:
    return np.array([[operand.index]], np.uint32)


def execute(w: Waves, i: Instruction) -> None:
    step = mfma_step(i, constant)
    assert step is not None
    step(w)


@pytest.mark.parametrize(("rows", "depth"), [(16, 128), (32, 64)])
@pytest.mark.parametrize(("a", "b"), list(itertools.product(FORMS, FORMS)))
def test_scaled(rows: int, depth: int, a: str, b: str) -> None:
    """Scales differ for every row and block, and lie in another byte of each register."""
    rng = np.random.default_rng(FORMS.index(a) * 5 + FORMS.index(b))
    w = waves()
    left, right = codes(rng, a, rows, depth), codes(rng, b, rows, depth)
    scales = [rng.integers(120, 134, (rows, depth // 32)) for _ in range(2)]
    operands = [
        put(w, "v", 0, fragment(left, a, True)),
        put(w, "a", 0, fragment(right, b, True)),
        Operand("int", 0, rows * rows // 64),
    ]
    for n, (scale, byte) in enumerate(zip(scales, (1, 2), strict=True)):
        noise = rng.integers(0, 1 << 32, 64, dtype=np.uint32) & ~np.uint32(0xFF << 8 * byte)
        own = np.array([scale[lane % rows, lane // rows] for lane in range(64)], np.uint32)
        operands.append(put(w, "v", 90 + n, (noise | own << 8 * byte)[:, None]))
    target = Operand("v", 32, rows * rows // 64)
    modifiers = {"cbsz": FORMS.index(a), "blgp": FORMS.index(b), "op_sel": 1, "op_sel_hi": 2}
    name = f"v_mfma_scale_f32_{rows}x{rows}x{depth}_f8f6f4"
    execute(w, Instruction(name, "VOP3P", 0, 16, (target,), tuple(operands), modifiers))
    full = [
        numbers(bits, form) * np.repeat(np.exp2(scale - 127.0), 32, axis=1)
        for bits, form, scale in zip((left, right), (a, b), scales, strict=True)
    ]
    wanted = full[0] @ full[1].T
    found = result(w, target, rows).view(np.float32)
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max(), rtol=0)


DENSE = {
    "v_mfma_f32_16x16x16_f16": (16, 16, "f16", "f16"),
    "v_mfma_f32_32x32x8_f16": (32, 8, "f16", "f16"),
    "v_mfma_f32_16x16x32_f16": (16, 32, "f16", "f16"),
    "v_mfma_f32_32x32x16_f16": (32, 16, "f16", "f16"),
    "v_mfma_f32_16x16x16_bf16": (16, 16, "bf16", "bf16"),
    "v_mfma_f32_16x16x32_bf16": (16, 32, "bf16", "bf16"),
    "v_mfma_f32_32x32x16_bf16": (32, 16, "bf16", "bf16"),
    "v_mfma_f32_16x16x4_f32": (16, 4, "f32", "f32"),
    "v_mfma_f32_32x32x2_f32": (32, 2, "f32", "f32"),
    "v_mfma_f32_16x16x32_fp8_bf8": (16, 32, "fp8", "bf8"),
    "v_mfma_f32_32x32x16_bf8_fp8": (32, 16, "bf8", "fp8"),
    "v_mfma_i32_16x16x64_i8": (16, 64, "i8", "i8"),
    "v_mfma_i32_32x32x32_i8": (32, 32, "i8", "i8"),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense(name: str) -> None:
    """With an accumulator, which is the result's own registers."""
    rows, depth, a, b = DENSE[name]
    rng = np.random.default_rng(len(name))
    w = waves()
    left, right = codes(rng, a, rows, depth), codes(rng, b, rows, depth)
    integer = a == "i8"
    start = (
        rng.integers(-(2**30), 2**30, (rows, rows)) if integer else rng.normal(0, 1, (rows, rows))
    )
    start = start.astype(np.int32 if integer else np.float32)
    count = rows * rows // 64
    lanes = np.zeros((64, count), np.uint32)
    for lane in range(64):
        for r in range(count):
            row = 4 * (lane // 16) + r if rows == 16 else 8 * (r // 4) + 4 * (lane // 32) + r % 4
            lanes[lane, r] = start.view(np.uint32)[row, lane % rows]
    target = put(w, "v", 32, lanes)
    operands = (
        put(w, "v", 0, fragment(left, a, False)),
        put(w, "v", 16, fragment(right, b, False)),
        target,
    )
    execute(w, Instruction(name, "VOP3P", 0, 8, (target,), operands))
    wanted = numbers(left, a) @ numbers(right, b).T + start
    found = result(w, target, rows)
    if integer:
        np.testing.assert_array_equal(
            found.view(np.int32), wanted.astype(np.int64).astype(np.int32)
        )
    else:
        np.testing.assert_allclose(
            found.view(np.float32), wanted, atol=1e-6 * np.abs(wanted).max(), rtol=0
        )


def test_forms_of_several_blocks_are_refused() -> None:
    target = Operand("v", 0, 4)
    i = Instruction("v_mfma_f32_4x4x4_16b_f16", "VOP3P", 0, 8, (target,), (target,) * 3)
    assert mfma_step(i, constant) is None
