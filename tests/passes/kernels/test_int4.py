"""int4 weights under f32 scales, on every instruction set of this CPU: each code is read back."""

import numpy as np
import pytest

from mxc.compiler import iree
from mxc.targets.target import target
from tests.passes.conftest import Formats
from tests.passes.kernels.conftest import Kernels

HOST = iree.resolve(target("cpu"))
#: CPUs that decode by lookups of words, of bytes and of dwords, and by arithmetic.
LEVELS = [
    name
    for name in ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64", "cpu:generic")
    if iree.resolve(target(name)).architecture == HOST.architecture
    and set(iree.resolve(target(name)).features) <= set(HOST.features)
]
BLOCK = 32
CASES = [f"int4 {activation} 1x{BLOCK}x33x{BLOCK}" for activation in ("f32", "bf16", "int8")]


@pytest.mark.parametrize("level", LEVELS)
def test_every_code(level: str, kernels: Kernels, formats: Formats) -> None:
    program = kernels(*CASES, target=level)
    codes = np.arange(33 * BLOCK, dtype=np.uint8).reshape(1, 33, 1, BLOCK) * 7 % 16
    scales = np.float32(0.3) * np.arange(-16, 17, dtype=np.float32).reshape(1, 33, 1)
    weight = formats.mx("int4", codes, scales)
    loaded = program.load(dict.fromkeys(CASES, weight))
    wanted = weight.values[0].T.astype(np.float32)
    for name, case in program.cases.items():
        x = formats.side(case.activation, np.eye(BLOCK).reshape(BLOCK, 1, BLOCK))
        found = loaded(name, x)[0]

        np.testing.assert_array_equal(found, wanted, err_msg=name)
