"""Whether a type holds every value of a format, against ml_dtypes over every code and scale."""

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.dequantize import is_exact

ELEMENTS = {
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn,
    "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
}
SCALES = {"f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "f8E4M3FN": ml_dtypes.float8_e4m3fn}
RESULTS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
WIDTHS = {"f4E2M1FN": 4, "f6E2M3FN": 6, "f6E3M2FN": 6}
PAIRS = [*((e, "f8E8M0FNU") for e in ELEMENTS), ("f4E2M1FN", "f8E4M3FN")]


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize(("element", "scale"), PAIRS)
def test_exactness(element: str, scale: str, result: str) -> None:
    codes = np.arange(1 << WIDTHS.get(element, 8), dtype=np.uint8)
    elements = codes.view(ELEMENTS[element]).astype(np.float32)
    scales = np.arange(256, dtype=np.uint8).view(SCALES[scale]).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values = elements[:, None] * scales[None, :]
        held = values.astype(RESULTS[result]).astype(np.float32)
    with new_context():
        types = [ir.Type.parse(name) for name in (element, scale, result)]
        assert is_exact(*types) == np.array_equal(values, held, equal_nan=True)
