"""The text of a decoded instruction is LLVM's assembly, from which the instruction was made."""

import re
from collections.abc import Callable

import pytest

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.text import text
from mxc.simulator.compute.packed import MIXED
from tests.simulator.instructions import (
    memories,
    test_atomics,
    test_conversions,
    test_lanes,
    test_operations,
    test_packed,
)
from tests.simulator.instructions.single import decoded

MATRIX = (
    "v_mfma_f32_32x32x1_2b_f32 v[0:31], v32, v33, v[0:31] cbsz:1 abid:1 blgp:2",
    "v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7] neg:[1,0,1]",
    "v_mfma_f64_4x4x4_4b_f64 a[0:1], v[8:9], v[10:11], 0",
    "v_mfma_i32_4x4x4_16b_i8 a[0:3], v4, v5, a[0:3]",
    "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10 cbsz:1 abid:2",
    "v_smfmac_i32_32x32x64_i8 a[0:15], v[4:7], v[8:15], v16",
    "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:15], v[0:3], v20, v21 "
    "op_sel:[1,0,0] op_sel_hi:[0,1,0] blgp:4",
    "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:21], v[24:29], 1.0 cbsz:2 blgp:3",
)
LINES = {
    "atomics": list(test_atomics.LINES),
    "conversions": list(test_conversions.LINES),
    "lanes": list(dict.fromkeys(test_lanes.LINES.values())),
    "matrix": list(MATRIX),
    "memory": list(dict.fromkeys(memories.LINES.values())),
    "operations": list(dict.fromkeys(test_operations.LINES)),
    "packed": [line for line, (name, _) in test_packed.PACKED.items() if name not in MIXED],
}


def normal(line: str) -> str:
    """Make two texts comparable: remove suffixes of encodings, and write numbers as decimals."""
    line = re.sub(r"^(\w+?)_(e32|e64)\b", r"\1", line)
    return re.sub(
        r"(?<=[ ,:])-?(0x[0-9a-f]+|\d+)(?=$|[ ,])", lambda m: str(int(m[0], 0) & 0xFFFF), line
    )


@pytest.mark.parametrize("part", LINES)
def test_text_is_what_was_assembled(part: str, assemble: Callable[..., CodeObjectKernel]) -> None:
    found = decoded(assemble, LINES[part])
    wrong = {line: text(i) for line, i in found.items() if normal(text(i)) != normal(line)}
    assert not wrong
