"""Prefetches of weights are placed load by load, because loads wait behind many in a row."""

import re

import pytest

from tests.passes.kernels.conftest import Kernels

CASES = [
    f"{weight} bf16 {size}"
    for weight in ("mxfp4", "nvfp4", "mxfp6e2m3", "mxfp8e4m3", "mxint8", "bf16")
    for size in ("1x1x64x2048", "?x1x64x2048")
]
#: By target, patterns of a prefetch to the second cache, one to the first, and a load of weights.
LINES = {
    "cpu:x86-64-v3": (r"prefetcht1\s", r"prefetcht0\s", r"v\w+\s.*\(.*ymm"),
    "cpu:znver5": (r"prefetcht1\s", r"prefetcht0\s", r"v\w+\s.*\(.*zmm"),
    "cpu:sapphirerapids": (r"prefetcht1\s", r"prefetcht0\s", r"v\w+\s.*\(.*zmm"),
    "cpu:neoverse-v2": (r"prfm\s+pldl2", r"prfm\s+pldl1", r"ld[pr]\s+q"),
}


@pytest.mark.parametrize("target", LINES)
def test_prefetches_alternate_with_loads(kernels: Kernels, target: str) -> None:
    program = kernels(*CASES, target=target, assembly=True)
    texts = "".join(file.read_text() for file in (program.file.parent / "assembly").glob("*.s"))
    far, near, _ = LINES[target]
    read = 0
    for kernel in re.split(r"(?=^mxc_\w.*:)", texts, flags=re.MULTILINE)[1:]:
        body = kernel.split(".Lfunc_end")[0]
        kinds = "".join(
            "F" if re.search(far, line) else "N" if re.search(near, line) else "L"
            for line in body.splitlines()
            if re.search("|".join(LINES[target]), line)
        )
        if "F" not in kinds:
            continue
        read += 1
        # The first load of a block may come with a third prefetch, for its scales.
        assert max(map(len, kinds.split("L"))) <= 3, (kernel.split(":")[0], kinds)
    assert read >= len(CASES)
