"""Every opcode that the simulator models has a test of its results.

Each file of such tests lists its opcodes in COVERS, which is made of the tables that its tests run
over. The modelled opcodes are found by translating one instruction of each opcode.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest

from mxc.simulator.code.decode import decode
from mxc.simulator.code.words import OPCODES
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.lines import Lines
from mxc.simulator.run.translate import NOTHING, instruction_lines
from tests.simulator.instructions.single import MODE

FILES = (
    *("test_atomics", "test_buffers", "test_conversions", "test_division", "test_lanes"),
    *("test_matrix", "test_matrix_blocks", "test_memory", "test_modes", "test_operations"),
    *("test_packed", ".pseudocode.test_pseudocode"),
)
#: For each encoding, the first bit of the opcode, and the bits that all instructions share.
ENCODINGS: dict[str, tuple[int, int]] = {
    "SOP1": (8, 0b101111101 << 23 | 20 << 16 | 30),
    "SOP2": (23, 0b10 << 30 | 20 << 16 | 34 << 8 | 30),
    "SOPC": (16, 0b101111110 << 23 | 34 << 8 | 30),
    "SOPK": (23, 0b1011 << 28 | 20 << 16 | 0x1801),
    "SMEM": (18, 0b110000 << 26 | 1 << 17 | 20 << 6 | 2),
    "VOP1": (9, 0b0111111 << 25 | 8 << 17 | 256),
    "VOP2": (25, 8 << 17 | 4 << 9 | 256),
    "VOPC": (17, 0b0111110 << 25 | 4 << 9 | 256),
    "VOP3": (16, 0b110100 << 26 | 32 | (256 | 264 << 9 | 272 << 18) << 32),
    "VOP3P": (16, 0b110100111 << 23 | 32 | (256 | 264 << 9 | 272 << 18) << 32),
    "DS": (17, 0b110110 << 26 | (1 | 2 << 8 | 6 << 16 | 10 << 24) << 32),
    "FLAT": (18, 0b110111 << 26 | (2 | 4 << 8 | 0x7F << 16 | 10 << 24) << 32),
    "GLOBAL": (18, 0b110111 << 26 | 2 << 14 | (2 | 4 << 8 | 0x7F << 16 | 10 << 24) << 32),
    "SCRATCH": (
        18,
        0b110111 << 26 | 1 << 14 | 1 << 13 | (2 | 4 << 8 | 0x7F << 16 | 10 << 24) << 32,
    ),
    "MUBUF": (18, 0b111000 << 26 | 1 << 12 | (1 | 2 << 8 | 2 << 16 | 128 << 24) << 32),
}
SCALED = 0xD3AC1000


def words() -> Iterator[tuple[str, int]]:
    """Yield each opcode with the bits of an instruction, as an integer."""
    for encoding, (place, fixed) in ENCODINGS.items():
        for code, name in OPCODES[encoding].items():
            # The default of op_sel_hi is all ones, and dot products accept nothing else.
            halves = 3 << 59 | 1 << 14 if name.startswith("v_dot") and encoding == "VOP3P" else 0
            yield name, fixed | code << place | halves
            if encoding == "VOP3P" and name.endswith("f8f6f4"):
                body = fixed | code << place | 1 << 11
                scaled = SCALED << 0 | (300 | 301 << 9) << 32 | body << 64
                yield name.replace("v_mfma_", "v_mfma_scale_"), scaled


@cache
def modelled() -> frozenset[str]:
    """Return the opcodes for which the simulator has a translation."""
    found = set()
    for name, word in words():
        if name in NOTHING:
            continue
        try:
            i = decode(word.to_bytes(20, "little"), 0, 0x1000)
            lines = Lines(MODE)
            instruction_lines(lines, i)
        except SimulationError:
            continue
        assert i.name == name, (i.name, name)
        found.add(name)
    return frozenset(found)


@cache
def covered() -> frozenset[str]:
    """Return the opcodes that the files list in COVERS."""
    return frozenset().union(*(import_module(f".{file}", __package__).COVERS for file in FILES))


def test_every_modelled_opcode_has_a_test() -> None:
    assert not sorted(modelled() - covered())


def test_what_is_tested_is_modelled() -> None:
    known = {name for name, _ in words()}
    assert not sorted((covered() & known) - modelled())


def test_most_opcodes_are_modelled() -> None:
    """A decoder that fails must not make this file pass."""
    assert len(modelled()) > 900


@pytest.mark.parametrize(
    "name",
    [
        "v_mfma_f32_16x16x8_xf32",
        "v_mfma_f32_32x32x4_xf32",
        "v_qsad_pk_u16_u8",
        "s_movrels_b32",
        "buffer_load_format_x",
        "ds_append",
        "s_atomic_add",
    ],
)
def test_others_are_refused(name: str) -> None:
    assert name in dict(words())
    assert name not in modelled()
