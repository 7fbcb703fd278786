"""Instructions that move values between lanes, and instructions on EXEC, against AMD's
pseudocode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import EXEC, Instruction
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.lanes import LANE_INSTRUCTIONS
from mxc.simulator.run.state import Waves
from tests.simulator.instructions.single import apply, decoded, fill, register, waves

Array = NDArray[Any]
LANE = np.arange(64)
SWIZZLES = {
    "quad": (0x8000 | 0b00_01_10_11, (LANE & ~3) | 3 - (LANE & 3)),
    "swap16": (0x10 << 10 | 0x1F, LANE ^ 16),
    "reverse8": (0x07 << 10 | 0x1F, LANE ^ 7),
    "broadcast8": (0x18 | 0x05 << 5, (LANE & ~7) | 5),
    "rotate left": (0xC000 | 1 << 5, (LANE & 32) | (LANE + 1 & 31)),
    "rotate right": (0xC000 | 0x400 | 1 << 5, (LANE & 32) | (LANE - 1 & 31)),
    "rotate odd": (0xC000 | 1 << 5 | 1, (LANE & 33) | (LANE + 1 & 30)),
    "fourier": (
        0xE000,
        (LANE & 32) | np.array([int(f"{n & 31:05b}"[::-1], 2) for n in LANE]),
    ),
    "no fourier": (0xE01F, LANE),
}
#: The first elements of two orders that section DS_SWIZZLE_B32 lists, counted from 1.
LISTED = {
    0xE000: [0x1, 0x11, 0x9, 0x19, 0x5, 0x15, 0xD, 0x1D],
    0xE010: [0x1, 0x9, 0x5, 0xD, 0x3, 0xB, 0x7, 0xF, 0x2],
    0xC421: [0x1F, 0x2, 0x1, 0x4, 0x3, 0x6],
    0xC021: [0x1, 0x4, 0x3, 0x6, 0x5, 0x8],
}
EXEC_OPS: dict[str, Callable[[int, int], int]] = {
    "and": lambda x, e: x & e,
    "or": lambda x, e: x | e,
    "xor": lambda x, e: x ^ e,
    "andn2": lambda x, e: x & ~e,
    "orn2": lambda x, e: x | ~e,
    "nand": lambda x, e: ~(x & e),
    "nor": lambda x, e: ~(x | e),
    "xnor": lambda x, e: ~(x ^ e),
    "andn1": lambda x, e: ~x & e,
    "orn1": lambda x, e: ~x | e,
}
ON_EXEC = [n for n in OPCODES["SOP1"].values() if n.endswith(("saveexec_b64", "wrexec_b64"))]
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*LANE_INSTRUCTIONS, *ON_EXEC, "s_getpc_b64"))
LINES = {
    **{f"swizzle {hex(o)}": f"ds_swizzle_b32 v8, v1 offset:{o}" for o, _ in SWIZZLES.values()},
    **{f"swizzle {hex(o)}": f"ds_swizzle_b32 v8, v1 offset:{o}" for o in LISTED},
    **{name: f"{name} s[20:21], s[30:31]" for name in ON_EXEC},
    "first": "v_readfirstlane_b32 s20, v1",
    "read": "v_readlane_b32 s20, v1, s30",
    "write": "v_writelane_b32 v8, 7, s30",
    "swap": "v_swap_b32 v1, v8",
    "permute": "ds_permute_b32 v8, v2, v1 offset:8",
    "bpermute": "ds_bpermute_b32 v8, v2, v1 offset:8",
    "rows": "v_permlane16_swap_b32 v1, v8",
    "halves": "v_permlane32_swap_b32 v1, v8",
    "getpc": "s_getpc_b64 s[20:21]",
}
#: Active lanes of two waves: all lanes, and some.
LANES = np.stack([np.ones(64, bool), np.random.default_rng(1).random(64) < 0.6])


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    found = decoded(assemble, dict.fromkeys(LINES.values()))
    return {name: found[text] for name, text in LINES.items()}


def ready() -> tuple[Waves, Array, Array]:
    """Return two waves with random v1 and v8, and the values of v1 and of v8."""
    w = waves(2)
    values = np.random.default_rng(2).integers(0, 1 << 32, (2, 2, 64), dtype=np.uint32)
    fill(w, 1, values[0][..., None])
    fill(w, 8, values[1][..., None])
    w.set_exec(np.packbits(LANES, axis=1, bitorder="little").view(np.uint64))
    return w, values[0], values[1]


@pytest.mark.parametrize("name", SWIZZLES)
def test_swizzle(name: str, instructions: dict[str, Instruction]) -> None:
    offset, source = SWIZZLES[name]
    w, values, old = ready()
    apply(instructions[f"swizzle {hex(offset)}"], w)
    moved = np.where(LANES[:, source], values[:, source], 0)
    np.testing.assert_array_equal(register(w, 8), np.where(LANES, moved, old))


@pytest.mark.parametrize("offset", LISTED)
def test_listed_swizzles(offset: int, instructions: dict[str, Instruction]) -> None:
    w = waves()
    fill(w, 1, (LANE + 1)[None, :, None])
    apply(instructions[f"swizzle {hex(offset)}"], w)
    assert register(w, 8)[0, : len(LISTED[offset])].tolist() == LISTED[offset]


def test_permutes(instructions: dict[str, Instruction]) -> None:
    """Sources that are inactive give nothing; of several writers the last lane wins."""
    address = np.random.default_rng(3).integers(0, 1 << 32, (2, 64), dtype=np.uint32)
    for name in ("permute", "bpermute"):
        w, values, old = ready()
        fill(w, 2, address[..., None])
        apply(instructions[name], w)
        for wave in range(2):
            result = [0] * 64
            for lane in range(64):
                other = (int(address[wave, lane]) + 8) // 4 % 64
                if name == "permute" and LANES[wave, lane]:
                    result[other] = int(values[wave, lane])
                if name == "bpermute" and LANES[wave, other]:
                    result[lane] = int(values[wave, other])
            wanted = np.where(LANES[wave], result, old[wave])
            np.testing.assert_array_equal(register(w, 8)[wave], wanted)


@pytest.mark.parametrize(("name", "rows"), [("rows", 16), ("halves", 32)])
def test_swaps_of_rows(name: str, rows: int, instructions: dict[str, Instruction]) -> None:
    w, first, second = ready()
    w.set_exec(np.full((1, 1), 0xFFFFFFFFFFFFFFFF, np.uint64))
    apply(instructions[name], w)
    for wave in range(2):
        a, b = first[wave].copy(), second[wave].copy()
        for start in range(0, 64, 2 * rows):
            for lane in range(start, start + rows):
                # Even rows of the source are swapped with odd rows of the destination.
                b[lane], a[lane + rows] = a[lane + rows], b[lane]
        np.testing.assert_array_equal(register(w, 1)[wave], a)
        np.testing.assert_array_equal(register(w, 8)[wave], b)


def test_swap(instructions: dict[str, Instruction]) -> None:
    w, first, second = ready()
    apply(instructions["swap"], w)
    np.testing.assert_array_equal(register(w, 1), np.where(LANES, second, first))
    np.testing.assert_array_equal(register(w, 8), np.where(LANES, first, second))


def test_scalars_of_lanes(instructions: dict[str, Instruction]) -> None:
    """The first active lane (0 where none is); a lane by number, whether active or not."""
    w, values, old = ready()
    apply(instructions["first"], w)
    wanted = [values[n, LANES[n].argmax()] for n in range(2)]
    assert np.broadcast_to(w.s[20], (2, 1))[:, 0].tolist() == wanted
    w.s[30] = np.array([[63], [64 + 5]], np.uint32)
    apply(instructions["read"], w)
    assert w.s[20][:, 0].tolist() == [values[0, 63], values[1, 5]]
    apply(instructions["write"], w)
    model = old.copy()
    model[0, 63], model[1, 5] = 7, 7
    np.testing.assert_array_equal(register(w, 8), model)
    w.set_exec(np.zeros((1, 1), np.uint64))
    apply(instructions["first"], w)
    assert np.broadcast_to(w.s[20], (2, 1))[:, 0].tolist() == values[:, 0].tolist()


@pytest.mark.parametrize("name", ON_EXEC)
def test_operations_on_exec(name: str, instructions: dict[str, Instruction]) -> None:
    rng = np.random.default_rng(len(name))
    masks = rng.integers(0, 1 << 63, (4, 2), dtype=np.uint64)
    masks[0], masks[1, 0], masks[2] = 0, 0, 0xFFFFFFFFFFFFFFFF
    w = waves(4)
    w.set_exec(masks[:, :1])
    w.s[30] = masks[:, 1:].astype(np.uint32)
    w.s[31] = (masks[:, 1:] >> np.uint64(32)).astype(np.uint32)
    apply(instructions[name], w)

    def pair(index: int) -> list[int]:
        low, high = (np.broadcast_to(w.s[index + n], (4, 1))[:, 0] for n in (0, 1))
        return [int(a) | int(b) << 32 for a, b in zip(low, high, strict=True)]

    operation = EXEC_OPS[name.split("_")[1]]
    for wave in range(4):
        before, source = int(masks[wave, 0]), int(masks[wave, 1])
        after = operation(source, before) & 0xFFFFFFFFFFFFFFFF
        assert pair(EXEC)[wave] == after
        assert pair(20)[wave] == (before if "saveexec" in name else after)
        assert bool(np.broadcast_to(w.scc, (4, 1))[wave, 0]) == (after != 0)


def test_program_counter(instructions: dict[str, Instruction]) -> None:
    """The address of what follows."""
    w = waves()
    i = instructions["getpc"]
    apply(i, w)
    assert int(w.s[20].flat[0]) | int(w.s[21].flat[0]) << 32 == i.address + 4
