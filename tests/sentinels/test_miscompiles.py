"""Programs that stock IREE compiles without a word and gets wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Program = Callable[..., Any]
HERE = Path(__file__).parent


def _step(module: Any) -> list[np.ndarray]:
    results = module.step(np.array([1], np.float32), np.array([2], np.float32), 3)
    return [r.to_host() / 2 for r in results]


def test_mutable_globals_with_equal_initial_values_are_merged(program: Program) -> None:
    text = (HERE / "equal_globals.mlir").read_text()
    a, b = _step(program("distinct.mlir", text.replace("@b = dense<0.0>", "@b = dense<5.0>")))
    assert (a[3], b[3]) == (1, 2), "distinct initial values are the cure, and must be right"

    a, b = _step(program("equal_globals.mlir"))
    assert (a[3], b[3]) != (1, 2), (
        "IREE fixed the merging of mutable globals with equal initial values: the key/value cache "
        "need no longer be a function argument"
    )


def test_sorts_from_a_shared_init_clobber_each_other(program: Program) -> None:
    module = program("shared_sort_init.mlir")
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((3, 4), dtype=np.float32) for _ in range(2))
    alone = module.one(x.copy()).to_host()
    np.testing.assert_array_equal(alone, np.argsort(-x, axis=1), "one sort alone must be right")

    first, second = (r.to_host() for r in module.both(x.copy(), y.copy()))
    right = np.array_equal(first, np.argsort(-x, axis=1)) and np.array_equal(
        second, np.argsort(-y, axis=1)
    )
    assert not right, (
        "IREE fixed in-place sorts from a shared init: the router may use iree_linalg_ext.sort "
        "instead of topk_v2"
    )


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("f4E2M1FN", ml_dtypes.float4_e2m1fn),
        ("f8E4M3FN", ml_dtypes.float8_e4m3fn),
        ("f8E5M2", ml_dtypes.float8_e5m2),
    ],
)
def test_scaling_truncf_rounds_wrongly(program: Program, element: str, dtype: Any) -> None:
    random = np.random.default_rng(0)
    # From below the smallest subnormal up to the largest finite value; nothing overflows.
    largest = float(ml_dtypes.finfo(dtype).max)
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal) / 4
    exponent = random.uniform(np.log2(smallest), np.log2(largest), 4096)
    x = (np.exp2(exponent) * random.choice([-1, 1], 4096)).astype(np.float32)
    found = program("scaling_truncf.mlir")[element](x, np.full(4096, 127, np.int8)).to_host()
    wanted = x.astype(dtype).view(np.uint8)
    wrong = np.count_nonzero(found.view(np.uint8) != wanted)
    assert wrong < 4096 // 2, "most codes are right: the program and the reference agree on meaning"
    assert wrong > 0, (
        f"IREE fixed arith.scaling_truncf to {element} on llvm-cpu: activations need no longer be "
        "quantized with integer operations there, and mxc-round-to-elements may go"
    )


def test_stores_of_six_bits_are_wrong(program: Program) -> None:
    module = program("narrow_stores.mlir")
    codes = np.random.default_rng(0).integers(0, 64, 64, dtype=np.uint8)
    for bits in (4, 6):
        rows = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
        wanted = np.packbits(rows.reshape(-1), bitorder="little")
        found = module[f"i{bits}"](codes.view(np.int8)).to_host().view(np.uint8)
        right = np.array_equal(found, wanted)
        if bits == 4:
            assert right, "elements of 4 bits must be right"
    assert not right, (
        "IREE fixed the writing of 6-bit elements: activations may be quantized to mxfp6 "
        "(MX_FORMATS in dialects/quantize.py)"
    )


def test_a_maximum_drops_nan_on_gpus(iree_compile: Callable[..., Any], tmp_path: Path) -> None:
    result = iree_compile(
        HERE / "maximum_of_nan.mlir",
        tmp_path / "out.vmfb",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
        target=("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950"),
    )
    assert result.returncode == 0, result.stderr
    text = "".join(path.read_text() for path in tmp_path.glob("*.rocmasm"))
    kernels = re.split(r"^(kept|dropped)_.*:$", text, flags=re.MULTILINE)
    code = dict(zip(kernels[1::2], kernels[2::2], strict=True))
    # gfx950 has v_maximum3_f32; other ways to keep NaN compare.
    keeps = re.compile(r"v_maximum3_f32|v_pk_maximum3|v_cmp_[ou]_f32")
    assert keeps.search(code["kept"]), "a comparison is the cure, and must stay one"
    assert "v_max" in code["dropped"]
    assert not keeps.search(code["dropped"]), (
        "IREE no longer replaces maximumf and minimumf by operations that lose NaN: "
        "mxc-propagate-nan can go"
    )


def test_truncf_to_scales_cuts_off(program: Program) -> None:
    module = program("truncf.mlir")
    x = np.linspace(0.875, 448, 4096, dtype=np.float32)
    found = module.f8E4M3FN(x).to_host().view(np.uint8)
    wanted = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(found, wanted, "a rounding to 8 bits must be right")

    found = module.f8E8M0FNU(x).to_host().view(np.uint8)
    wrong = np.count_nonzero(found != x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
    assert wrong > 0, (
        "IREE rounds arith.truncf to f8E8M0FNU to nearest on llvm-cpu: programs that do so need no "
        "longer be refused (passes/check_operations.py)"
    )


def test_results_in_the_memory_of_arguments_overwrite_what_is_read(program: Program) -> None:
    text = (HERE / "exchanged.mlir").read_text()
    alone = program("alone.mlir", re.sub(r" \{iree.abi.output = \d : index\}", "", text))
    a, b = np.arange(64, dtype=np.float32), np.full(64, 7, np.float32)
    wanted = [b + 1, 2 * a]
    for found, each in zip(alone.step(a.copy(), b.copy()), wanted, strict=True):
        np.testing.assert_array_equal(found.to_host(), each, "without aliases it must be right")

    found = [each.to_host() for each in program("exchanged.mlir").step(a.copy(), b.copy())]
    assert not all(map(np.array_equal, found, wanted)), (
        "IREE looks at who reads an argument before it writes a result there: mxc-drop-aliases "
        "can go"
    )
