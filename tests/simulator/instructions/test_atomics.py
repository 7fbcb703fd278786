"""Atomic operations, lane after lane, against AMD's pseudocode and the rules for floats."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.signatures import local_data, memory_widths
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.atomics import local_atomic, memory_atomic
from mxc.simulator.run.operands import SHARED_BASE
from mxc.simulator.run.state import Waves
from tests.simulator.instructions.single import apply, decoded, fill, register, waves
from tests.simulator.pseudocode.pcode_language import execute, program
from tests.simulator.pseudocode.pcode_values import make

Array = NDArray[Any]
LOCAL = [n for n in OPCODES["DS"].values() if local_atomic(n)]
MEMORY = [n for t in ("GLOBAL", "FLAT", "MUBUF") for n in OPCODES[t].values() if memory_atomic(n)]
EXCHANGES = [n for n in OPCODES["DS"].values() if n.startswith("ds_wrxchg2")]
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*LOCAL, *MEMORY, *EXCHANGES))
FLOATS = {"f32": (32, np.float32, np.uint32), "f64": (64, np.float64, np.uint64)}
SLOTS = 8
EDGES = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555, 3]
NUMBERS = [0.0, -0.0, 1.0, -1.5, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 65504.0]


def registers(bank: str, first: int, count: int) -> str:
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


def line(name: str, returns: bool) -> str:
    loaded, stored = memory_widths(name)
    data = registers("v", 2, stored)
    if name.startswith("ds_"):
        operands = [registers("v", 10, loaded)] * bool(loaded) + ["v1", data]
        operands += [registers("v", 6, stored)] * (local_data(name) == 2)
        offset = " offset0:1 offset1:3" if name in EXCHANGES else " offset:8"
        return f"{name} {', '.join(operands)}{offset}"
    sc0 = " sc0" * returns
    result = [registers("v", 10, loaded)] * returns
    if name.startswith("buffer_"):
        return f"{name} {data}, v1, s[8:11], s12 offen offset:8{sc0}"
    if name.startswith("flat_"):
        return f"{name} {', '.join([*result, 'v[0:1]', data])} offset:8{sc0}"
    return f"{name} {', '.join([*result, 'v1', data, 's[2:3]'])} offset:8{sc0}"


LINES = {
    line(name, returns): (name, returns)
    for name in (*LOCAL, *MEMORY, *EXCHANGES)
    for returns in ((False,) if name.startswith("ds_") else (False, True))
}


@pytest.fixture(scope="module")
def instructions(assemble: Callable[..., CodeObjectKernel]) -> dict[str, Instruction]:
    return decoded(assemble, LINES)


def kind_of(name: str) -> str:
    """Return the type that an operation computes with: "f32", "f64", "pk_add_f16", "pk_add_bf16",
    or for integers their bits, "32" or "64"."""
    for kind in ("pk_add_f16", "pk_add_bf16"):
        if kind in name.replace("rtn_", ""):
            return kind
    last = name.rsplit("_", 1)[1]
    return last if last in ("f32", "f64") else "64" if memory_bits(name) == 64 else "32"


def memory_bits(name: str) -> int:
    atomic = local_atomic(name) or memory_atomic(name)
    return 32 * (atomic.dwords if atomic else memory_widths(name)[1])


def samples(rng: np.random.Generator, name: str, count: int) -> Array:
    """Draw operands as uint64: edge values and random ones of the operation's width."""
    kind = kind_of(name)
    wide = memory_bits(name) == 64
    if kind in FLOATS:
        _, number, bits = FLOATS[kind]
        edges = np.array(NUMBERS, number).view(bits).astype(np.uint64)
        noise = rng.normal(0, 2, count).astype(number).view(bits).astype(np.uint64)
        nans = np.uint64(0x7F800001 if kind == "f32" else 0x7FF0000000000001)
        edges = np.append(edges, nans)
    elif kind.startswith("pk_add"):
        dtype = np.float16 if kind.endswith("_f16") else ml_dtypes.bfloat16
        with np.errstate(over="ignore"):
            pool = np.array([*NUMBERS, 6e-8, 0.1, 1e-5]).astype(dtype).view(np.uint16)
        low, high = (rng.choice(pool, count).astype(np.uint64) for _ in range(2))
        return low | high << np.uint64(16)
    else:
        edges = np.array(EDGES, np.uint64)
        edges = np.concatenate([edges, edges << np.uint64(32)]) if wide else edges
        noise = rng.integers(0, 1 << (63 if wide else 32), count, dtype=np.uint64)
    return np.where(rng.random(count) < 0.7, rng.choice(edges, count), noise)


def flushed(value: Any, keep: bool) -> Any:
    tiny = {np.float32: 2.0**-126, np.float64: 2.0**-1022, np.float16: 2.0**-14}
    limit = tiny.get(type(value), 2.0**-126)
    return value if keep or not abs(value) < limit else type(value)(np.copysign(0.0, value))


def quiet(bits: int, kind: str) -> int:
    return bits | (1 << 22 if kind == "f32" else 1 << 51)


def extreme(old: int, value: int, kind: str, largest: bool, keep: bool) -> int:
    """Return minimum or maximum by section 9.2.3: a signalling NaN wins over numbers, a quiet NaN
    loses; -0 is below +0."""
    _, number, bits = FLOATS[kind]

    def of(code: int) -> Any:
        return np.array([code], bits).view(number)[0]

    for code in (old, value):
        if np.isnan(of(code)) and quiet(code, kind) != code:
            return quiet(code, kind)
    if np.isnan(of(old)):
        return old if np.isnan(of(value)) else value
    if np.isnan(of(value)):
        return old
    a, b = (flushed(of(c), keep) for c in (old, value))
    first, second = (a, not np.signbit(a)), (b, not np.signbit(b))
    if a == b == 0:
        first, second = (0, first[1]), (0, second[1])
    return value if (second > first if largest else second < first) else old


@np.errstate(all="ignore")
def wanted_value(name: str, old: int, data: list[int], keep: bool) -> int:
    """Return the value that the operation of one lane leaves in memory."""
    kind = kind_of(name)
    plain = name.replace("rtn_", "")
    if kind in FLOATS:
        _, number, bits = FLOATS[kind]
        a, b = (np.array([c], bits).view(number)[0] for c in (old, data[0]))
        if "min_" in plain or "max_" in plain:
            return extreme(old, data[0], kind, "max_" in plain, keep)
        if "cmpst" in plain:
            result = data[1] if flushed(a, keep) == flushed(b, keep) else old
            final = np.array([result], bits).view(number)[0]
            return int(np.array([flushed(final, keep)], number).view(bits)[0])
        keep = keep or kind == "f64"
        total = flushed(number(flushed(a, keep) + flushed(b, keep)), keep)
        return int(np.array([total], number).view(bits)[0])
    if kind.startswith("pk_add"):
        dtype = np.float16 if kind.endswith("_f16") else ml_dtypes.bfloat16
        result = 0
        for shift in (0, 16):
            a, b = (
                np.array([c >> shift & 0xFFFF], np.uint16).view(dtype)[0] for c in (old, data[0])
            )
            limit = 2.0**-14 if dtype == np.float16 else 2.0**-126

            def near(x: Any, limit: float = limit, dtype: Any = dtype) -> Any:
                return x if keep or not abs(float(x)) < limit else dtype(np.copysign(0.0, float(x)))

            total = near(dtype(float(near(a)) + float(near(b))))
            result |= int(np.array([total], dtype).view(np.uint16)[0]) << shift
        return result
    lines = [
        text.replace("MEM[addr]", "MEMORY").replace("MEM[ADDR]", "MEMORY")
        for text in program(name) or ()
        if not text.startswith("addr =")
    ]
    assert lines, name
    scope: dict[str, Any] = {"MEMORY": old, "DATA": make("u", 128, data[0])}
    if len(data) == 2:
        swapped = "cmpswap" in name
        wide = memory_bits(name)
        both = data[1] | data[0] << wide if swapped else data[0]
        scope |= {"DATA": make("u", 128, both), "DATA2": make("u", 64, data[1])}
    execute(lines, scope)
    found = scope["MEMORY"]
    return int(found if isinstance(found, int) else found.bits) & (1 << memory_bits(name)) - 1


def same(name: str, found: int, wanted: int) -> bool:
    """Return whether two values are equal to the bit, or both NaN."""
    kind = kind_of(name)
    if kind in FLOATS:
        _, number, bits = FLOATS[kind]
        a, b = (np.array([c], bits).view(number)[0] for c in (found, wanted))
        return bool(found == wanted or (np.isnan(a) and np.isnan(b)))
    if kind.startswith("pk_add"):
        dtype = np.float16 if kind.endswith("_f16") else ml_dtypes.bfloat16
        halves = (np.array([c], np.uint32).view(dtype).astype(float) for c in (found, wanted))
        a, b = halves
        return bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())
    return found == wanted


def place_lanes(
    w: Waves, name: str, memory: Array, slots: Array, rng: np.random.Generator
) -> tuple[Callable[[], Array], int]:
    """Put addresses of `memory` into registers.

    Return a function that reads the memory back, and the element at which the operation's offset
    begins.
    """
    size = memory_bits(name) // 8
    if name.startswith("ds_"):
        w.lds.bytes[: memory.nbytes] = memory.view(np.uint8)
        fill(w, 1, (slots * size)[..., None])
        return (lambda: w.lds.bytes[: memory.nbytes].view(memory.dtype).copy()), 8 // size
    address = w.memory.add(memory)
    w.s[2], w.s[3] = (np.array([[x]], np.uint32) for x in (address & 0xFFFFFFFF, address >> 32))
    w.s[8], w.s[9] = w.s[2], w.s[3]
    w.s[10], w.s[11] = (np.array([[x]], np.uint32) for x in (memory.nbytes - 4, 0))
    w.s[12] = np.array([[0]], np.uint32)
    if name.startswith("flat_"):
        fill(w, 0, np.stack([address + slots * size, np.full(slots.shape, address >> 32)], -1))
    else:
        fill(w, 1, (slots * size)[..., None])
    return (lambda: memory.copy()), 8 // size


@pytest.mark.parametrize("text", [t for t, (n, _) in LINES.items() if n not in EXCHANGES])
@pytest.mark.parametrize("mode", [0x3F0, 0x300])
def test_atomic(text: str, mode: int, instructions: dict[str, Instruction]) -> None:
    name, _ = LINES[text]
    rng = np.random.default_rng(sum(text.encode()) + mode)
    w = waves(2, mode=mode, lds=256)
    bits = np.uint64 if memory_bits(name) == 64 else np.uint32
    memory = samples(rng, name, 2 * SLOTS).astype(bits)
    before = memory.copy()
    slots = rng.integers(0, SLOTS, (2, 64))
    atomic = local_atomic(name) or memory_atomic(name)
    assert atomic is not None
    count = atomic.operands
    data = [samples(rng, name, 128).reshape(2, 64) for _ in range(count)]
    if count == 2:
        # Some comparisons succeed.
        data[0] = np.where(rng.random((2, 64)) < 0.6, before[slots + 8 // bits().nbytes], data[0])
    read, first = place_lanes(w, name, memory, slots, rng)
    words = bits().nbytes // 4
    parts = [np.stack([d >> np.uint64(32 * n) for n in range(words)], axis=-1) for d in data]
    if "cmpswap" in name:
        fill(w, 2, np.concatenate([parts[1], parts[0]], axis=-1))
    else:
        for n, part in enumerate(parts):
            fill(w, 2 + 4 * n, part)
    lanes = rng.random((2, 64)) < 0.8
    w.set_exec(np.packbits(lanes, axis=1, bitorder="little").view(np.uint64))
    i = instructions[text]
    result = i.results[0].index if i.results else 0
    old = [register(w, result + n) for n in range(words)]
    apply(i, w)
    keep = keeps(name, mode)
    model = before.copy()
    for wave, lane in np.ndindex(2, 64):
        at = slots[wave, lane] + first
        got = sum(int(register(w, result + n)[wave, lane]) << 32 * n for n in range(words))
        if not lanes[wave, lane]:
            if i.results:
                assert got == sum(int(o[wave, lane]) << 32 * n for n, o in enumerate(old))
            continue
        if i.results:
            assert same(name, got, int(model[at])), (wave, lane)
        values = [int(d[wave, lane]) for d in data]
        model[at] = wanted_value(name, int(model[at]), values, keep)
    for place, (found, wanted) in enumerate(zip(read(), model, strict=True)):
        assert same(name, int(found), int(wanted)), (place, hex(found), hex(wanted))


@pytest.mark.parametrize("name", [name for name in MEMORY if name.startswith("flat_")])
def test_flat_atomics_of_lds(name: str, instructions: dict[str, Instruction]) -> None:
    """They leave in LDS, and return, what they do in memory: one number for each lane."""
    i, size = instructions[line(name, True)], memory_bits(name) // 8
    rng = np.random.default_rng(sum(name.encode()))
    data = samples(rng, name, 64 * 3).astype(np.uint64).view(np.uint32).reshape(3, 64, 2)
    data = data[..., : size // 4]
    found = []
    for base in (None, SHARED_BASE << 32):
        # In this mode LDS flushes the same denormals as memory.
        w, memory = (
            waves(lds=1024, mode=0x3C0),
            np.concatenate([np.zeros(2, np.uint32), data[2].reshape(-1)]),
        )
        w.lds.bytes[: memory.nbytes] = memory.view(np.uint8)
        at = (w.memory.add(memory) if base is None else base) + np.arange(64) * size
        fill(w, 0, np.stack([at & 0xFFFFFFFF, at >> 32], axis=-1)[None])
        # Every second comparison succeeds.
        expected = np.where(np.arange(64)[:, None] % 2, data[2], data[1])
        fill(w, 2, np.concatenate([data[0], expected], axis=-1)[None])
        apply(i, w)
        whole = memory if base is None else w.lds.bytes[: memory.nbytes].view(np.uint32)
        found.append([whole.copy(), *(register(w, 10 + n).copy() for n in range(size // 4))])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert (found[0][0][2:] != data[2].reshape(-1)).any()
    np.testing.assert_array_equal(found[0][1:], found[1][1:])


def keeps(name: str, mode: int) -> bool:
    """Return whether an operation keeps denormals, by table 53: LDS obeys MODE, memory flushes them
    only in sums of float32."""
    kind = kind_of(name)
    if not name.startswith("ds_"):
        return kind != "f32"
    return bool(mode >> (4 if kind == "f32" else 6) & 1)


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_of_two(name: str, instructions: dict[str, Instruction]) -> None:
    rng = np.random.default_rng(len(name))
    width = memory_widths(name)[1]
    unit = width * 4 * (64 if "st64" in name else 1)
    w = waves(lds=8192)
    memory = rng.integers(0, 1 << 32, 2048, dtype=np.uint32)
    w.lds.bytes[:] = memory.view(np.uint8)
    address = np.arange(64) * 4 * width * 4
    fill(w, 1, address[None, :, None])
    data = rng.integers(0, 1 << 32, (2, 64, width), dtype=np.uint32)
    fill(w, 2, data[0][None])
    fill(w, 6, data[1][None])
    apply(instructions[line(name, False)], w)
    model = memory.copy()
    for n, offset in enumerate((1, 3)):
        for lane in range(64):
            at = (address[lane] + offset * unit) // 4
            got = [register(w, 10 + n * width + k)[0, lane] for k in range(width)]
            assert got == model[at : at + width].tolist()
    for n, offset in enumerate((1, 3)):
        for lane in range(64):
            at = (address[lane] + offset * unit) // 4
            model[at : at + width] = data[n, lane]
    np.testing.assert_array_equal(w.lds.bytes.view(np.uint32), model)


def test_an_address_off_its_size_is_refused(instructions: dict[str, Instruction]) -> None:
    w = waves(lds=64)
    fill(w, 1, np.full((1, 64, 1), 2))
    fill(w, 2, np.ones((1, 64, 1)))
    with pytest.raises(SimulationError, match="not a multiple of 4 bytes"):
        apply(instructions[line("ds_add_u32", False)], w)


def test_atomics_beyond_a_buffer_do_nothing(instructions: dict[str, Instruction]) -> None:
    """Range checks are all or nothing, and what is returned is 0."""
    w = waves()
    memory = np.zeros(4, np.uint32)
    place_lanes(w, "buffer_atomic_add", memory, np.zeros((1, 64), int), np.random.default_rng(0))
    fill(w, 1, np.where(np.arange(64) == 5, 0, 4096)[None, :, None])
    fill(w, 2, np.full((1, 64, 1), 7))
    apply(instructions[line("buffer_atomic_add", True)], w)
    assert memory.tolist() == [0, 0, 7, 0]
