"""LDS, global, flat and scratch memory against a plain byte array, lane by lane."""

from collections.abc import Callable

import numpy as np
import pytest

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import M0, Instruction
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.spaces import Bytes
from mxc.simulator.run.operands import PRIVATE_BASE, SHARED_BASE
from mxc.simulator.run.state import Waves
from tests.simulator.instructions.memories import (
    BY_LANE,
    FLAT,
    GLOBAL,
    LINES,
    LOCAL,
    PAIRS,
    SCRATCH,
    TRANSPOSED,
    check,
    loaded,
    noise,
    scalars,
    shape_of,
)
from tests.simulator.instructions.single import apply, decoded, fill, register, waves

#: Opcodes that this file tests with numbers.
COVERS = frozenset((*LOCAL, *PAIRS, *BY_LANE, *TRANSPOSED, *GLOBAL, *FLAT, *SCRATCH))


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    found = decoded(assemble, LINES.values())
    return {name: found[text] for name, text in LINES.items()}


@pytest.mark.parametrize("name", LOCAL)
def test_local(name: str, instructions: dict[str, Instruction]) -> None:
    w = waves(lds=2048)
    w.lds.bytes[:] = noise(2048, 1)
    place = np.random.default_rng(2).permutation(64) * 16
    fill(w, 1, place[None, :, None])
    check(instructions[name], name, w, w.lds.bytes, place + 16)


@pytest.mark.parametrize("name", GLOBAL)
def test_global(name: str, instructions: dict[str, Instruction]) -> None:
    w, memory = waves(), noise(2048, 3)
    base = w.memory.add(memory)
    scalars(w, 4, base & 0xFFFFFFFF, base >> 32)
    place = np.random.default_rng(4).permutation(64) * 20
    fill(w, 1, (place + 16)[None, :, None])
    check(instructions[name], name, w, memory, place)


@pytest.mark.parametrize("name", SCRATCH)
def test_scratch(name: str, instructions: dict[str, Instruction]) -> None:
    w = waves()
    w.scratch, w.scratch_size = Bytes(noise(64 * 64, 7)), 64
    w.scratch_base = np.arange(64)[None] * 64
    place = np.random.default_rng(8).integers(0, 8, 64) * 4
    fill(w, 1, place[None, :, None])
    check(instructions[name], name, w, w.scratch.bytes, np.arange(64) * 64 + place + 16)


@pytest.mark.parametrize("name", FLAT)
def test_flat(name: str, instructions: dict[str, Instruction]) -> None:
    """A third of the lanes each on global memory, LDS and scratch."""
    w, memory = waves(lds=2048), noise(2048, 9)
    w.lds.bytes[:] = noise(2048, 10)
    w.scratch, w.scratch_size = Bytes(noise(64 * 64, 11)), 64
    w.scratch_base = np.arange(64)[None] * 64
    base = w.memory.add(memory)
    rng = np.random.default_rng(12)
    kind = rng.integers(0, 3, 64)
    place = np.where(kind == 2, 16, rng.permutation(64) * 16)
    starts = np.array([base, SHARED_BASE << 32, PRIVATE_BASE << 32])[kind]
    address = starts + place
    fill(w, 2, np.stack([address & 0xFFFFFFFF, address >> 32], axis=-1)[None])
    # One array that holds the three memories one after the other.
    together = np.concatenate([memory, w.lds.bytes, w.scratch.bytes])
    at = place + 16 + np.array([0, 2048, 4096])[kind] + np.where(kind == 2, np.arange(64) * 64, 0)

    def step(i: Instruction, given: Waves) -> None:
        apply(i, given)
        together[:2048], together[2048:4096] = memory, given.lds.bytes
        together[4096:] = given.scratch.bytes

    i = instructions[name]
    size, _, half = shape_of(name)
    data = rng.integers(0, 1 << 32, (1, 64, max(1, size // 4)), dtype=np.uint32)
    fill(w, 8, data)
    model = together.copy()
    step(i, w)
    for lane in range(64):
        old = data[0, lane].tolist()
        if "load" in name:
            wanted = loaded(model, int(at[lane]), name, old)
            assert [int(register(w, 8 + n)[0, lane]) for n in range(len(wanted))] == wanted
        else:
            raw = data[0, lane].tobytes()
            raw = raw[2:] if half == "hi" else raw
            model[at[lane] : at[lane] + size] = np.frombuffer(raw[:size], np.uint8)
    np.testing.assert_array_equal(together, model)


@pytest.mark.parametrize("name", PAIRS)
def test_two_addresses(name: str, instructions: dict[str, Instruction]) -> None:
    w = waves(lds=16384)
    w.lds.bytes[:] = noise(16384, 13)
    width = 8 if name.endswith("b64") else 4
    unit = width * (64 if "st64" in name else 1)
    place = np.random.default_rng(14).permutation(64) * 48
    fill(w, 1, place[None, :, None])
    data = np.random.default_rng(15).integers(0, 1 << 32, (2, 64, width // 4), dtype=np.uint32)
    fill(w, 8, data[0][None])
    fill(w, 12, data[1][None])
    model = w.lds.bytes.copy()
    apply(instructions[name], w)
    at = [place + unit, place + 2 * unit]
    if "write" in name:
        for n in (0, 1):
            for lane in range(64):
                model[at[n][lane] : at[n][lane] + width] = data[n, lane].view(np.uint8)
        np.testing.assert_array_equal(w.lds.bytes, model)
        return
    for lane in range(64):
        raw = b"".join(model[at[n][lane] : at[n][lane] + width].tobytes() for n in (0, 1))
        found = [int(register(w, 8 + n)[0, lane]) for n in range(width // 2)]
        assert found == np.frombuffer(raw, np.uint32).tolist()


def test_two_equal_addresses_are_written_once(instructions: dict[str, Instruction]) -> None:
    w = waves(lds=512)
    fill(w, 1, np.arange(64)[None, :, None] * 4)
    fill(w, 8, np.full((1, 64, 1), 5))
    fill(w, 12, np.full((1, 64, 1), 6))
    apply(instructions["same"], w)
    assert (w.lds.words[1:65] == 5).all()


def test_by_lane(instructions: dict[str, Instruction]) -> None:
    w = waves(lds=1024)
    w.lds.bytes[:] = noise(1024, 16)
    scalars(w, M0, 32)
    apply(instructions["ds_read_addtid_b32"], w)
    np.testing.assert_array_equal(register(w, 8)[0], w.lds.words[12 : 12 + 64])
    fill(w, 8, np.arange(64)[None, :, None])
    apply(instructions["ds_write_addtid_b32"], w)
    np.testing.assert_array_equal(w.lds.words[12 : 12 + 64], np.arange(64))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str, instructions: dict[str, Instruction]) -> None:
    """rocRoller's test on hardware: 16 lanes load rows of 16 elements and hold the columns."""
    bits = int(name.rsplit("_b", 1)[1])
    size = 12 if bits == 6 else 8
    count = 8 * size // bits
    w = waves(lds=4096)
    w.lds.bytes[:] = noise(4096, 17)
    # The addresses of a group of lanes need not be adjacent: lanes read at multiples of 16 bytes,
    # in random order.
    place = np.random.default_rng(18).permutation(64) * 16
    fill(w, 1, place[None, :, None])
    elements = []
    for lane in range(64):
        raw = w.lds.bytes[place[lane] + 16 : place[lane] + 16 + size].tobytes()
        packed = int.from_bytes(raw, "little")
        elements.append([packed >> bits * n & (1 << bits) - 1 for n in range(count)])
    apply(instructions[name], w)
    for lane in range(64):
        words = [int(register(w, 8 + n)[0, lane]) for n in range(size // 4)]
        packed = sum(word << 32 * n for n, word in enumerate(words))
        found = [packed >> bits * n & (1 << bits) - 1 for n in range(count)]
        group = lane // 16 * 16
        stream = [e for other in range(group, group + 16) for e in elements[other]]
        assert found == [stream[16 * row + lane % 16] for row in range(count)]


def test_a_transposing_load_needs_all_lanes(instructions: dict[str, Instruction]) -> None:
    w = waves(lds=4096)
    fill(w, 1, np.zeros((1, 64, 1)))
    w.set_exec(np.array([[1]], np.uint64))
    with pytest.raises(SimulationError, match="EXEC must be all ones"):
        apply(instructions["ds_read_b64_tr_b8"], w)
