"""Loads and stores of every kind against a plain byte array, lane by lane."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from single import apply, decoded, fill, register, waves

from mxc.runtime.simulator.code_object import Kernel
from mxc.runtime.simulator.errors import SimulationError
from mxc.runtime.simulator.instruction import M0, Instruction
from mxc.runtime.simulator.memory import Bytes
from mxc.runtime.simulator.operands import PRIVATE_BASE, SHARED_BASE
from mxc.runtime.simulator.state import Waves
from mxc.runtime.simulator.words import OPCODES

Array = NDArray[Any]
#: Bytes and whether they are signed.
NARROW = {"ubyte": (1, 0), "sbyte": (1, 1), "ushort": (2, 0), "sshort": (2, 1), "byte": (1, 0)}
NARROW |= {"short": (2, 0), "u8": (1, 0), "i8": (1, 1), "u16": (2, 0), "i16": (2, 1)}
NARROW |= {"b8": (1, 0), "b16": (2, 0)}
WORDS = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
WORDS |= {"b32": 4, "b64": 8, "b96": 12, "b128": 16}


def shape_of(name: str) -> tuple[int, int, str]:
    """Bytes, signed, and "", "d16" or "hi"."""
    half = "hi" if name.endswith("_d16_hi") else "d16" if name.endswith("_d16") else ""
    last = name.replace("_d16_hi", "").replace("_d16", "").rsplit("_", 1)[1]
    return (*NARROW[last], half) if last in NARROW else (WORDS[last], 0, half)


def plain(table: str, prefix: str) -> list[str]:
    """Loads and stores of a table that move one value between a register and memory."""
    words = ("format", "lds", "atomic", "tr_b", "addtid", "2_b", "2st64", "xchg", "wbl2", "inv")
    kinds = (f"{prefix}_load", f"{prefix}_store", f"{prefix}_read", f"{prefix}_write")
    return [
        n
        for n in OPCODES[table].values()
        if n.startswith(kinds) and not any(word in n for word in words)
    ]


LOCAL = plain("DS", "ds")
PAIRS = [n for n in OPCODES["DS"].values() if n.startswith(("ds_read2", "ds_write2"))]
BY_LANE = ["ds_read_addtid_b32", "ds_write_addtid_b32"]
TRANSPOSED = [n for n in OPCODES["DS"].values() if "_tr_b" in n]
GLOBAL, FLAT = plain("GLOBAL", "global"), plain("FLAT", "flat")
SCRATCH, BUFFER = plain("SCRATCH", "scratch"), plain("MUBUF", "buffer")
TO_LDS = [f"global_load_lds_{d}" for d in ("dword", "dwordx3", "dwordx4")]
SCALAR = [n for n in OPCODES["SMEM"].values() if n.startswith(("s_load_", "s_buffer_load_"))]
#: Opcodes that this file tests with numbers.
COVERS = frozenset(
    (*LOCAL, *PAIRS, *BY_LANE, *TRANSPOSED, *GLOBAL, *FLAT, *SCRATCH, *BUFFER, *TO_LDS, *SCALAR)
)


def span(bank: str, first: int, count: int) -> str:
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


def line(name: str) -> str:
    size, _, _ = shape_of(name)
    data = span("v", 8, max(1, size // 4))
    stores = "store" in name or "write" in name
    where = {
        "ds": ("v1", " offset:16"),
        "global": ("v1", " offset:-16"),
        "flat": ("v[2:3]", " offset:16"),
        "scratch": ("v1", " offset:16"),
        "buffer": ("v1", " offen offset:16"),
    }
    address, offset = where[name.split("_")[0]]
    if name.startswith("buffer"):
        return f"{name} {data}, {address}, s[8:11], s12{offset}"
    tail = {"global": ", s[4:5]", "scratch": ", off"}.get(name.split("_")[0], "")
    first, second = (address, data) if stores else (data, address)
    return f"{name} {first}, {second}{tail}{offset}"


def pair_line(name: str) -> str:
    width = 2 if name.endswith("b64") else 1
    if "write" in name:
        return f"{name} v1, {span('v', 8, width)}, {span('v', 12, width)} offset0:1 offset1:2"
    return f"{name} {span('v', 8, 2 * width)}, v1 offset0:1 offset1:2"


BUFFERS = {
    "raw": "buffer_load_dword v8, v1, s[8:11], s12 offen offset:4",
    "raw4": "buffer_load_dwordx4 v[8:11], v1, s[8:11], s12 offen offset:4",
    "raw store": "buffer_store_dwordx2 v[8:9], v1, s[8:11], 0 offen",
    "index": "buffer_load_dword v8, v1, s[8:11], s12 idxen offset:4",
    "both": "buffer_load_dwordx2 v[8:9], v[2:3], s[8:11], 0 idxen offen offset:4",
    "one": "buffer_load_dword v8, v[2:3], s[8:11], s12 idxen offen offset:4",
    "threads": "buffer_load_dword v8, off, s[8:11], s12 offset:4",
    "lds": "buffer_load_dword v1, s[8:11], s12 offen offset:4 lds",
    "lds3": "buffer_load_dwordx3 v1, s[8:11], s12 offen offset:4 lds",
    "lds4": "buffer_load_dwordx4 v1, s[8:11], s12 offen offset:4 lds",
    "lds byte": "buffer_load_ubyte v1, s[8:11], s12 offen lds",
}
EXTRA = {
    **{n: f"{n} v1, s[4:5] offset:-16" for n in TO_LDS},
    **{n: f"{n} {span('v', 8, 3 if 'b96' in n else 2)}, v1 offset:16" for n in TRANSPOSED},
    "ds_read_addtid_b32": "ds_read_addtid_b32 v8 offset:16",
    "ds_write_addtid_b32": "ds_write_addtid_b32 v8 offset:16",
    "apertures": "s_mov_b64 s[20:21], src_shared_base",
    "private": "s_mov_b64 s[20:21], src_private_limit",
    "same": "ds_write2_b32 v1, v8, v12 offset0:1 offset1:1",
    **{
        n: f"{n} {span('s', 32, int(n.rsplit('dword')[-1].removeprefix('x') or 1))}, "
        + ("s[8:11], 0x10" if "buffer" in n else "s[4:5], 0x10")
        for n in SCALAR
    },
}
LINES = {
    **{n: line(n) for n in (*LOCAL, *GLOBAL, *FLAT, *SCRATCH, *BUFFER)},
    **{n: pair_line(n) for n in PAIRS},
    **BUFFERS,
    **EXTRA,
}


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., Kernel]) -> dict[str, Instruction]:
    found = decoded(assemble, LINES.values())
    return {name: found[text] for name, text in LINES.items()}


def scalars(w: Waves, first: int, *values: int) -> None:
    for n, value in enumerate(values):
        w.s[first + n] = np.array([[value]], np.uint32)


def noise(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def loaded(memory: Array, at: int, name: str, old: list[int]) -> list[int]:
    """The registers that a load leaves, given the bytes and what they held."""
    size, signed, half = shape_of(name)
    raw = memory[at : at + size].tobytes()
    if size >= 4:
        return [int.from_bytes(raw[n : n + 4], "little") for n in range(0, size, 4)]
    value = int.from_bytes(raw, "little", signed=bool(signed))
    if half == "hi":
        return [old[0] & 0xFFFF | (value & 0xFFFF) << 16]
    return [old[0] & 0xFFFF0000 | value & 0xFFFF if half else value & 0xFFFFFFFF]


def check(i: Instruction, name: str, w: Waves, memory: Array, at: Array) -> None:
    """Execute with some lanes inactive; at: the byte in `memory` that each lane means."""
    size, _, half = shape_of(name)
    count = max(1, size // 4)
    rng = np.random.default_rng(7)
    data = rng.integers(0, 1 << 32, (1, 64, count), dtype=np.uint32)
    fill(w, 8, data)
    lanes = rng.random((1, 64)) < 0.8
    w.set_exec(np.packbits(lanes, axis=1, bitorder="little").view(np.uint64))
    model = memory.copy()
    apply(i, w)
    if "store" not in name and "write" not in name:
        for lane in range(64):
            old = data[0, lane].tolist()
            wanted = loaded(model, int(at[lane]), name, old) if lanes[0, lane] else old
            assert [int(register(w, 8 + n)[0, lane]) for n in range(count)] == wanted
        return
    for lane in np.flatnonzero(lanes[0]):
        raw = data[0, lane].tobytes()
        raw = raw[2:] if half == "hi" else raw
        model[at[lane] : at[lane] + size] = np.frombuffer(raw[:size], np.uint8)
    np.testing.assert_array_equal(memory, model)


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


@pytest.mark.parametrize("name", BUFFER)
def test_raw_buffer(name: str, instructions: dict[str, Instruction]) -> None:
    w, memory = waves(), noise(2048, 5)
    base = w.memory.add(memory)
    scalars(w, 8, base & 0xFFFFFFFF, base >> 32, 2048, 0, 24)
    place = np.random.default_rng(6).permutation(64) * 20
    fill(w, 1, place[None, :, None])
    check(instructions[name], name, w, memory, place + 40)


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
    # One array that stands for the three memories.
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
    # Lanes of a group need not be neighbours in memory: 16 bytes apart, in any order.
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
