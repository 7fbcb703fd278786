"""Memory instructions as text, and their effect on a plain byte array."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.words import OPCODES
from mxc.simulator.run.state import Waves
from tests.simulator.instructions.single import apply, fill, register

Array = NDArray[Any]
#: Number of bytes, and whether they are sign-extended.
NARROW = {"ubyte": (1, 0), "sbyte": (1, 1), "ushort": (2, 0), "sshort": (2, 1), "byte": (1, 0)}
NARROW |= {"short": (2, 0), "u8": (1, 0), "i8": (1, 1), "u16": (2, 0), "i16": (2, 1)}
NARROW |= {"b8": (1, 0), "b16": (2, 0)}
WORDS = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
WORDS |= {"b32": 4, "b64": 8, "b96": 12, "b128": 16}


def shape_of(name: str) -> tuple[int, int, str]:
    """Return the number of bytes, whether they are signed, and the half of a register that is
    accessed: "" (none), "d16" (the lower one) or "hi"."""
    half = "hi" if name.endswith("_d16_hi") else "d16" if name.endswith("_d16") else ""
    last = name.replace("_d16_hi", "").replace("_d16", "").rsplit("_", 1)[1]
    return (*NARROW[last], half) if last in NARROW else (WORDS[last], 0, half)


def plain(table: str, prefix: str) -> list[str]:
    """Return the loads and stores of a table that move one value between registers and memory."""
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


def registers(bank: str, first: int, count: int) -> str:
    return f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"


def line(name: str) -> str:
    size, _, _ = shape_of(name)
    data = registers("v", 8, max(1, size // 4))
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
        first, second = registers("v", 8, width), registers("v", 12, width)
        return f"{name} v1, {first}, {second} offset0:1 offset1:2"
    return f"{name} {registers('v', 8, 2 * width)}, v1 offset0:1 offset1:2"


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
    **{n: f"{n} {registers('v', 8, 3 if 'b96' in n else 2)}, v1 offset:16" for n in TRANSPOSED},
    "ds_read_addtid_b32": "ds_read_addtid_b32 v8 offset:16",
    "ds_write_addtid_b32": "ds_write_addtid_b32 v8 offset:16",
    "apertures": "s_mov_b64 s[20:21], src_shared_base",
    "private": "s_mov_b64 s[20:21], src_private_limit",
    "same": "ds_write2_b32 v1, v8, v12 offset0:1 offset1:1",
    **{
        n: f"{n} {registers('s', 32, int(n.rsplit('dword')[-1].removeprefix('x') or 1))}, "
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


def scalars(w: Waves, first: int, *values: int) -> None:
    for n, value in enumerate(values):
        w.s[first + n] = np.array([[value]], np.uint32)


def noise(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def loaded(memory: Array, at: int, name: str, old: list[int]) -> list[int]:
    """Return the registers after a load at byte `at`; `old` are the registers before."""
    size, signed, half = shape_of(name)
    raw = memory[at : at + size].tobytes()
    if size >= 4:
        return [int.from_bytes(raw[n : n + 4], "little") for n in range(0, size, 4)]
    value = int.from_bytes(raw, "little", signed=bool(signed))
    if half == "hi":
        return [old[0] & 0xFFFF | (value & 0xFFFF) << 16]
    return [old[0] & 0xFFFF0000 | value & 0xFFFF if half else value & 0xFFFFFFFF]


def check(i: Instruction, name: str, w: Waves, memory: Array, at: Array) -> None:
    """Execute an instruction with some lanes inactive, and check registers and memory.

    `at`: the byte of `memory` that each lane accesses.
    """
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
    for lane in np.flatnonzero(lanes[0]).tolist():
        raw = data[0, lane].tobytes()
        raw = raw[2:] if half == "hi" else raw
        model[at[lane] : at[lane] + size] = np.frombuffer(raw[:size], np.uint8)
    np.testing.assert_array_equal(memory, model)
