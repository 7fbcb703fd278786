"""Each form of form_programs.py is one kernel of ours on each target, with the right numbers."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from tests.forms.form_programs import ONE_ROW, TRANSPOSED, Form, function
from tests.forms.form_weights import KO, TARGETS, K, M, N

#: One line is one form, on every target.
FORMS = [
    *(Form(elements=each) for each in ("typed", "extract", "concat", "high_first", "insert")),
    *(
        Form(elements=each, scales="exp2")
        for each in ("gather", "shifts", "halves", "halves_of_blocks")
    ),
    *(Form("extract", each) for each in ("exp2", "powf", "fpowi", "shift")),
    *(Form("extract", "exp2", each) for each in ("blocks", "expand", "broadcast")),
    *(Form("extract", "exp2", kind=each) for each in ("bf16",)),
    *(
        Form("extract", "exp2", contract=each)
        for each in (
            *("transposed", "contract", "generic", "in_body", "vecmat", "matvec", "weight_first"),
            "weight_first_relu",
        )
    ),
    Form("insert", "exp2", "broadcast", "bf16", "generic"),
]


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The target, the loaded artifact, and the report by function."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    source = folder / "forms.mlir"
    source.write_text("\n".join(map(function, FORMS)))
    output = folder / "forms.mxc"
    mxc.compile(source, target=request.param, output=output)
    rows = json.loads((output / "report.json").read_text())["matmuls"]
    by_function: dict[str, list[Any]] = {}
    for row in rows:
        by_function.setdefault(row["function"], []).append(row)
    return request.param, mxc.load(output, device=TARGETS[request.param][0]), by_function


def nibbles(codes: NDArray[np.uint8], form: Form) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The low and the high nibbles of the bytes of a form."""
    if form.elements.startswith("halves"):
        parts = codes.reshape(N, KO if form.elements == "halves_of_blocks" else 1, 2, -1)
        return parts[:, :, 0].reshape(N, -1), parts[:, :, 1].reshape(N, -1)
    nibbles = codes[:, 0::2], codes[:, 1::2]
    return nibbles[::-1] if form.elements == "high_first" else nibbles


def weights(form: Form) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.float64]]:
    """Bytes, scale bytes, and the values that ml_dtypes gives them."""
    rng = np.random.default_rng(11)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = rng.integers(122, 131, (N, KO), dtype=np.uint8)
    low, high = nibbles(codes, form)
    packed = low | high << 4
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    return packed.view(np.int8), scales.view(np.int8), values * np.repeat(factors, 32, axis=1)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_form(compiled: Any, form: Form) -> None:
    target, model, report = compiled
    (row,) = report[form.name]
    assert row["fallback"] is None
    assert TARGETS[target][1] in row["lowering"]
    assert row["kernel"].startswith("mxc_")
    assert row["rhs"] == "mxfp4"
    # Small integers: every product and sum is exact, in any order.
    x = np.random.default_rng(5).integers(-8, 9, (M, K)).astype(np.float32)
    packed, scales, values = weights(form)
    given = x.astype(ml_dtypes.bfloat16) if form.kind == "bf16" else x
    (found,) = model.call(form.name, given, packed, scales)
    wanted = x @ values.T
    wanted = wanted.T if form.contract in TRANSPOSED else wanted
    if form.contract.endswith("relu"):
        assert "_then_" in row["kernel"]
        wanted = np.maximum(wanted, 0)
    np.testing.assert_array_equal(found, wanted[0] if form.contract in ONE_ROW else wanted)
