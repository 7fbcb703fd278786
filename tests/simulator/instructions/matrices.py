"""Fragments of matrix instructions, filled and read lane by lane with AMD's formulas.

Source: AMD CDNA4 instruction set architecture, sections 7.1.4 and 7.1.5, written as loops,
independently of the simulator. The values of elements are those of ml_dtypes.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxc.simulator.code.instruction import Operand
from mxc.simulator.compute.operations import Array
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.state import Waves

DTYPES: dict[str, Any] = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
}
WIDTH = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4, "i8": 8}
WIDTH |= {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
_BITS = {4: np.uint8, 6: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def random_codes(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw the bits of random finite elements."""
    if form == "i8":
        numbers = rng.integers(-128, 128, shape).astype(np.int8)
    else:
        numbers = rng.normal(0, 1, shape).astype(DTYPES[form])
    return numbers.view(_BITS[WIDTH[form]])


def small_codes(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw the bits of integers from -2 to 2, which every format holds: sums are exact."""
    numbers = rng.integers(-2, 3, shape).astype(np.float64).astype(DTYPES[form])
    return numbers.view(_BITS[WIDTH[form]])


def numbers_of(bits: NDArray[Any], form: str) -> NDArray[np.float64]:
    return bits.view(DTYPES[form]).astype(np.float64)


def registers(lanes: dict[int, list[int]], width: int) -> Array:
    """Pack the items of each lane to uint32 [64, n], from the lowest bit on."""
    rows = []
    for lane in range(64):
        packed = sum(code << width * n for n, code in enumerate(lanes[lane]))
        size = max(4, width * len(lanes[lane]) // 8)
        rows.append(np.frombuffer(packed.to_bytes(size, "little"), np.uint32))
    return np.stack(rows)


def first_fragment(bits: NDArray[Any], form: str) -> Array:
    """Return the registers of A with element bits [blocks, rows, K]. Those of B are the same, with
    columns in place of rows."""
    blocks, rows, depth = bits.shape
    together = depth // (64 // (rows * blocks))
    lanes: dict[int, list[int]] = {lane: [0] * together for lane in range(64)}
    for b, i, k in np.ndindex(bits.shape):
        lanes[i + rows * (b + blocks * (k // together))][k % together] = int(bits[b, i, k])
    return registers(lanes, WIDTH[form])


def eight_bit_fragment(bits: NDArray[Any]) -> Array:
    """Return the registers of an f8 operand of f8f6f4 instructions with element bits [rows, K]:
    table FP8 of section 7.1.5.1."""
    rows, depth = bits.shape
    lanes = {}
    for lane in range(64):
        group = lane // rows
        ks = [half * (depth // 2) + group * 16 + n for half in (0, 1) for n in range(16)]
        lanes[lane] = [int(bits[lane % rows, k]) for k in ks]
    return registers(lanes, 8)


def places(rows: int, blocks: int, height: int) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return the element (block, row, column) of the result that each (lane, item) holds, by
    section 7.1.4.2."""
    together = -(-64 // (rows * rows // height))
    high = 64 // together // rows
    groups = rows // (height * high)
    found = {}
    for b, i, j in np.ndindex((blocks, rows, rows)):
        item = i % height + height * (i // (height * high) + groups * (b // together))
        lane = j + rows * ((i // height) % high + high * (b % together))
        found[lane, item] = (b, i, j)
    assert len(found) == blocks * rows * rows
    return found


def result_lanes(matrix: NDArray[Any], height: int) -> Array:
    """Return the registers [64, n] of a matrix [blocks, rows, rows], int32, float32 or float64."""
    blocks, rows, _ = matrix.shape
    lanes = np.zeros((64, blocks * rows * rows // 64), matrix.dtype)
    for (lane, item), place in places(rows, blocks, height).items():
        lanes[lane, item] = matrix[place]
    return lanes.view(np.uint32)


def result_matrix(lanes: Array, rows: int, blocks: int, height: int, kind: Any) -> NDArray[Any]:
    """Return the matrix [blocks, rows, rows] that registers [64, n] hold."""
    values = np.ascontiguousarray(lanes).view(kind)
    matrix = np.zeros((blocks, rows, rows), kind)
    for (lane, item), place in places(rows, blocks, height).items():
        matrix[place] = values[lane, item]
    return matrix


def one_wave() -> Waves:
    none = Bytes(np.zeros(4, np.uint8))
    w = Waves(1, 192, 64, Memory(), none, none)
    w.mode = 0x3F0
    return w


def put(w: Waves, bank: str, first: int, lanes: Array) -> Operand:
    for n in range(lanes.shape[1]):
        w.bank(bank)[first + n] = np.ascontiguousarray(lanes[None, :, n], np.uint32)
    return Operand(bank, first, lanes.shape[1])


def get(w: Waves, operand: Operand) -> Array:
    """Return the registers of an operand as uint32 [64, n]."""
    bank = w.bank(operand.bank)
    parts = [np.broadcast_to(bank[operand.index + n], (1, 64))[0] for n in range(operand.count)]
    return np.stack(parts, axis=1)


def constant(operand: Operand) -> Array:
    bits = {242: 0x3F800000, 244: 0x40000000, 240: 0x3F000000}
    return np.array([[bits.get(operand.index, operand.index)]], np.uint32)
