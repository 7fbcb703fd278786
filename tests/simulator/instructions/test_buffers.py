"""Buffers, scalar loads and loads to LDS against a plain byte array, lane by lane."""

from collections.abc import Callable

import numpy as np
import pytest

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import M0, Instruction
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.operands import PRIVATE_BASE, SHARED_BASE
from tests.simulator.instructions.memories import (
    BUFFER,
    LINES,
    SCALAR,
    TO_LDS,
    check,
    noise,
    scalars,
)
from tests.simulator.instructions.single import apply, decoded, fill, register, waves

#: Opcodes that this file tests with numbers.
COVERS = frozenset((*BUFFER, *TO_LDS, *SCALAR))


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    found = decoded(assemble, LINES.values())
    return {name: found[text] for name, text in LINES.items()}


@pytest.mark.parametrize("name", BUFFER)
def test_raw_buffer(name: str, instructions: dict[str, Instruction]) -> None:
    w, memory = waves(), noise(2048, 5)
    base = w.memory.add(memory)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 2048, 0, 24)
    place = np.random.default_rng(6).permutation(64) * 20
    fill(w, 1, place[None, :, None])
    check(instructions[name], name, w, memory, place + 40)


@pytest.mark.parametrize("name", [*TO_LDS, "lds", "lds3", "lds4"])
def test_loads_to_lds(name: str, instructions: dict[str, Instruction]) -> None:
    """4 bytes a lane, or 16 for loads of 3 and 4 dwords, from M0 and the offset on."""
    i = instructions[name]
    words = 3 if "3" in name else 4 if "4" in name else 1
    w, memory = waves(lds=2048), noise(2048, 19)
    before = w.lds.bytes.copy()
    base = w.memory.add(memory)
    scalars(w, 4, base & 0xFFFFFFFF, base >> 32)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 2048, 0, 0)
    scalars(w, M0, 64)
    offset = i.has("offset")
    place = np.random.default_rng(20).permutation(64) * 16
    fill(w, 1, (place - offset)[None, :, None])
    apply(i, w)
    apart = 4 if words == 1 else 16
    for lane in range(64):
        at = 64 + offset + apart * lane
        before[at : at + 4 * words] = memory[place[lane] : place[lane] + 4 * words]
    np.testing.assert_array_equal(w.lds.bytes, before)


def test_loads_of_bytes_to_lds_are_refused(instructions: dict[str, Instruction]) -> None:
    with pytest.raises(SimulationError, match="not modelled"):
        apply(instructions["lds byte"], waves(lds=64))


def test_bounds_of_a_raw_buffer(instructions: dict[str, Instruction]) -> None:
    """Dword by dword, and without the scalar offset."""
    w, memory = waves(), noise(2048, 21)
    base = w.memory.add(memory)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 100, 0, 1000)
    fill(w, 1, (np.arange(64) * 4)[None, :, None])
    apply(instructions["raw"], w)
    at = np.arange(64) * 4 + 4
    wanted = [
        int.from_bytes(memory[1000 + x : 1004 + x].tobytes(), "little") if x + 4 <= 100 else 0
        for x in at
    ]
    assert register(w, 8)[0].tolist() == wanted
    apply(instructions["raw4"], w)
    for n in range(4):
        wanted = [
            int.from_bytes(memory[1000 + x : 1004 + x].tobytes(), "little") if x + 4 <= 100 else 0
            for x in at + 4 * n
        ]
        assert register(w, 8 + n)[0].tolist() == wanted
    fill(w, 8, np.full((1, 64, 2), 0xEEEEEEEE))
    fill(w, 1, (np.arange(64) * 8)[None, :, None])
    scalars(w, 10, 60)
    apply(instructions["raw store"], w)
    assert (memory[:60] == 0xEE).all()
    assert not (memory[60:120] == 0xEE).all()


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("name", ["index", "both", "one"])
def test_structured_buffer(name: str, swizzled: bool, instructions: dict[str, Instruction]) -> None:
    """Stride times index, or the swizzle of section 9.1.5.2; records are counted by index."""
    i = instructions[name]
    w, memory = waves(), noise(16384, 22)
    base = w.memory.add(memory)
    stride, records, run = 32, 40, 16
    flags = 1 << 21
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32 | stride << 16 | swizzled << 31, records, flags, 12)
    index = np.random.default_rng(23).permutation(64)
    offset = np.random.default_rng(24).integers(0, 6, 64) * 4
    fill(w, 1, index[None, :, None])
    fill(w, 2, np.stack([index, offset], axis=-1)[None])
    if swizzled and name == "both":
        with pytest.raises(SimulationError, match="swizzled by 4"):
            apply(i, w)
        return
    apply(i, w)
    scalar = 0 if name == "both" else 12
    for lane in range(64):
        within = 4 + (int(offset[lane]) if name != "index" else 0)
        place = int(index[lane])
        at = place * stride + within
        if swizzled:
            at = (place // run * stride + within // 4 * 4) * run + place % run * 4 + within % 4
        raw = memory[scalar + at : scalar + at + 4].tobytes()
        wanted = int.from_bytes(raw, "little") if place < records else 0
        assert int(register(w, 8)[0, lane]) == wanted


def test_buffer_of_threads(instructions: dict[str, Instruction]) -> None:
    """ADD_TID without an index: no bounds, and a stride of 18 bits."""
    w, memory = waves(), noise(1 << 21, 25)
    base = w.memory.add(memory)
    stride = 0x4000 + 4
    word = base >> 32 | (stride & 0x3FFF) << 16
    scalars(w, 8, base & 0xFFFFFFFF, word, 0, 1 << 23 | (stride >> 14) << 15, 8)
    apply(instructions["threads"], w)
    at = 12 + np.arange(64) * stride
    wanted = [int.from_bytes(memory[x : x + 4].tobytes(), "little") for x in at]
    assert register(w, 8)[0].tolist() == wanted


def test_waves_agree_on_the_kind_of_their_buffer(instructions: dict[str, Instruction]) -> None:
    """Those that execute the instruction; each has its own offset."""
    w, memory = waves(3), noise(256, 27)
    base = w.memory.add(memory)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 256, 0, 0)
    fill(w, 1, np.arange(3, dtype=np.uint32)[:, None, None] + np.zeros((3, 64, 1), np.uint32))
    # The flags are first one value for all waves, then one value for each wave.
    for flags in (np.zeros((1, 1)), np.array([[0], [1 << 23], [0]])):
        w.s[11] = flags.astype(np.uint32)
        w.active = np.array([[True], [False], [True]])
        apply(instructions["raw"], w)
        assert (register(w, 8)[0] != register(w, 8)[2]).all()
    w.active = None
    with pytest.raises(SimulationError, match="waves differ in whether a buffer adds the thread"):
        apply(instructions["raw"], w)
    w.s[11] = np.zeros((3, 1), np.uint32)
    apply(instructions["raw"], w)


def test_buffers_without_documented_bounds_are_refused(
    instructions: dict[str, Instruction],
) -> None:
    for name, word, flags in (("index", 0, 0), ("index", 4 << 16, 1 << 23), ("raw", 1 << 31, 0)):
        w = waves()
        scalars(w, 8, 0, word, 64, flags, 0)
        fill(w, 1, np.zeros((1, 64, 1)))
        with pytest.raises(SimulationError, match="bounds of this kind of buffer"):
            apply(instructions[name], w)


@pytest.mark.parametrize("name", SCALAR)
def test_scalar(name: str, instructions: dict[str, Instruction]) -> None:
    """Buffers give 0 beyond their end, dword by dword."""
    w, memory = waves(), noise(256, 26)
    base = w.memory.add(memory)
    scalars(w, 4, base & 0xFFFFFFFF, base >> 32)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 40, 0)
    apply(instructions[name], w)
    words = memory.view(np.uint32)[4:20].copy()
    if "buffer" in name:
        words[6:] = 0
    i = instructions[name]
    found = [int(w.s[32 + n].flat[0]) for n in range(i.results[0].count)]
    assert found == words[: len(found)].tolist()
    if "buffer" in name:
        scalars(w, 9, base >> 32 | 4 << 16, 10, 0)
        apply(i, w)
        assert found == [int(w.s[32 + n].flat[0]) for n in range(i.results[0].count)]


def test_apertures(instructions: dict[str, Instruction]) -> None:
    w = waves()
    apply(instructions["apertures"], w)
    assert [int(w.s[n].flat[0]) for n in (20, 21)] == [0, SHARED_BASE]
    apply(instructions["private"], w)
    assert [int(w.s[n].flat[0]) for n in (20, 21)] == [0xFFFFFFFF, PRIVATE_BASE]


def test_bounds_of_loads_to_lds(instructions: dict[str, Instruction]) -> None:
    """As of every load: the dwords that lie in the buffer, zeros for the others."""
    i = instructions["lds4"]
    w, memory = waves(lds=2048), noise(2048, 27)
    base = w.memory.add(memory)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 16 * 20 + 8, 0, 0)
    scalars(w, M0, 0)
    fill(w, 1, (np.arange(64) * 16 - i.has("offset"))[None, :, None])
    w.lds.bytes[:] = 0xEE
    apply(i, w)
    found = w.lds.bytes[i.has("offset") : i.has("offset") + 1024].reshape(64, 16)
    np.testing.assert_array_equal(found[:20], memory[: 16 * 20].reshape(20, 16))
    np.testing.assert_array_equal(found[20, :8], memory[16 * 20 : 16 * 20 + 8])
    assert not found[20, 8:].any()
    assert not found[21:].any()
