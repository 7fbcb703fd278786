"""The decoder against the assembly that the compiler printed for the same kernel."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from mxc.simulator.code.decode import decode
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.text import text
from mxc.simulator.errors import SimulationError

F4, E4 = "f4E2M1FN", "f8E4M3FN"


def all_instructions(kernel: Any) -> list[Instruction]:
    at = kernel.descriptor.entry - kernel.address
    found = []
    while at < len(kernel.code):
        found.append(decode(kernel.code, at, kernel.address + at))
        at += found[-1].size
    return found


def normal(line: str) -> str:
    """Make two texts comparable: remove suffixes of encodings and targets of branches, and write
    numbers as decimals of 16 bits. Another test checks the targets."""
    line = re.sub(r"^(\w+?)_(e32|e64)\b", r"\1", line)
    line = re.sub(r"^(s_c?branch\w*) .*", r"\1", line)
    return re.sub(
        r"(?<=[ ,:])-?(0x[0-9a-f]+|\d+)(?=$|[ ,])", lambda m: str(int(m[0], 0) & 0xFFFF), line
    )


@pytest.mark.parametrize("shape", [(16, 16, 128), (128, 256, 512), (100, 96, 2880)])
def test_text_is_the_assembly(
    shape: tuple[int, ...], scaled: Callable[..., Any], printed: Callable[..., list[str]]
) -> None:
    compiled = scaled(*shape)
    wanted = [normal(line) for line in printed(compiled.assembly, compiled.kernel.name)]
    found = [normal(text(i)) for i in all_instructions(compiled.kernel)]
    # The linker pads between parts with s_nop 0.
    position = 0
    for line in wanted:
        while found[position] != line and found[position] == "s_nop 0":
            position += 1
        assert found[position] == line
        position += 1
    assert len(wanted) > 50
    assert set(found[position:]) <= {"s_nop 0", "s_code_end"}


def test_a_branch_goes_where_a_block_begins(scaled: Callable[..., Any]) -> None:
    from mxc.simulator.run.translate import TranslatedKernel

    program = TranslatedKernel(scaled(100, 96, 2880).kernel)
    targets = [b.target for b in program.blocks.values() if b.kind in ("branch", "jump")]
    assert targets
    assert set(targets) <= set(program.blocks)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (0xBE80FF00, "opcode 255 of SOP1"),
        (0x80000000 | 60 << 23, "opcode 60 of SOP2"),
        (0x7E0002D1, "operand code 209 is reserved"),
        (0xFFFFFFFF, "no instruction of gfx950"),
    ],
)
def test_bits_that_are_no_instruction(word: int, reason: str) -> None:
    with pytest.raises(SimulationError, match=reason):
        decode(word.to_bytes(4, "little") + bytes(16), 0, 0x1000)
