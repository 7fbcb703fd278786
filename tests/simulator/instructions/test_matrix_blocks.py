"""Dense and sparse matrix instructions against float64 products, with AMD's fragment layouts."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.code.words import OPCODES
from mxc.simulator.compute.mfma import mfma_step
from mxc.simulator.compute.sparse import smfmac_step
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves
from tests.simulator.instructions.matrices import (
    constant,
    first_fragment,
    get,
    numbers_of,
    one_wave,
    put,
    random_codes,
    result_lanes,
    result_matrix,
    small_codes,
)

DENSE = sorted(
    name
    for name in OPCODES["VOP3P"].values()
    if name.startswith("v_mfma_") and not name.endswith(("f8f6f4", "xf32", "scale_b32"))
)
SPARSE = sorted(name for name in OPCODES["VOP3P"].values() if name.startswith("v_smfmac_"))
#: Opcodes that this file tests with numbers.
COVERS = frozenset((*DENSE, *SPARSE))
OVERFLOW_IS_LIMITED = 1 << 23


def shape_of(name: str) -> tuple[int, int, int, str, str]:
    """Return rows, depth, number of blocks, and the element types of A and B."""
    found = re.fullmatch(r"v_s?mfma[c]?_\w32_(\d+)x\d+x(\d+)(?:_(\d+)b)?_(\w+)", name)
    found = found or re.fullmatch(r"v_mfma_f64_(\d+)x\d+x(\d+)(?:_(\d+)b)?_(\w+)", name)
    assert found is not None, name
    forms = found[4].split("_") * 2
    return int(found[1]), int(found[2]), int(found[3] or 1), forms[0], forms[1]


def kind_of(name: str) -> tuple[Any, int]:
    """Return the type of the result, and how many consecutive rows of it a lane holds."""
    if "_i32_" in name:
        return np.int32, 4
    return (np.float64, 1) if "_f64_" in name else (np.float32, 4)


def start_of(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    if kind == np.int32:
        return rng.integers(-(2**30), 2**30, shape).astype(kind)
    return rng.integers(-9, 9, shape).astype(kind)


def run_dense(
    name: str, a: NDArray[Any], b: NDArray[Any], start: NDArray[Any], w: Waves, **fields: int
) -> NDArray[Any]:
    """Execute a dense instruction on the bits of A and B, [blocks, rows, K], and an accumulator.

    Return the result [blocks, rows, rows].
    """
    rows, _, blocks, left, right = shape_of(name)
    kind, height = kind_of(name)
    target = put(w, "a", 0, result_lanes(start, height))
    operands = (
        put(w, "v", 0, first_fragment(a, left)),
        put(w, "v", 16, first_fragment(b, right)),
        target,
    )
    step = mfma_step(Instruction(name, "VOP3P", 0, 8, (target,), operands, fields), constant)
    assert step is not None
    with np.errstate(all="ignore"):
        step(w)
    return result_matrix(get(w, target), rows, blocks, height, kind)


@pytest.mark.parametrize("name", DENSE)
def test_dense(name: str) -> None:
    """With sums that are exact in any order, whose result replaces the accumulator."""
    rows, depth, blocks, left, right = shape_of(name)
    kind, _ = kind_of(name)
    rng = np.random.default_rng(sum(name.encode()))
    codes = random_codes if left == "i8" else small_codes
    a, b = (codes(rng, form, (blocks, rows, depth)) for form in (left, right))
    start = start_of(rng, (blocks, rows, rows), kind)
    found = run_dense(name, a, b, start, one_wave())
    wanted = numbers_of(a, left) @ numbers_of(b, right).transpose(0, 2, 1) + start
    np.testing.assert_array_equal(found, wanted.astype(np.int64).astype(kind))


@pytest.mark.parametrize("name", DENSE)
def test_dense_with_random_numbers(name: str) -> None:
    rows, depth, blocks, left, right = shape_of(name)
    kind, _ = kind_of(name)
    rng = np.random.default_rng(sum(name.encode()) + 1)
    a, b = (random_codes(rng, form, (blocks, rows, depth)) for form in (left, right))
    start = start_of(rng, (blocks, rows, rows), kind)
    found = run_dense(name, a, b, start, one_wave())
    exact = numbers_of(a, left) @ numbers_of(b, right).transpose(0, 2, 1) + start
    bound = {np.int32: 0.0, np.float64: 1e-15, np.float32: 1e-6}[kind]
    exact = exact.astype(np.int64).astype(np.int32) if kind == np.int32 else exact
    np.testing.assert_allclose(found, exact, rtol=0, atol=bound * np.abs(exact).max())


@pytest.mark.parametrize("name", [n for n in DENSE if shape_of(n)[2] > 1 and "f64" not in n])
def test_broadcasts(name: str) -> None:
    """CBSZ, ABID and BLGP as the lanes from which lanes read (section 7.1.6)."""
    rows, depth, blocks, left, right = shape_of(name)
    kind, height = kind_of(name)
    rng = np.random.default_rng(sum(name.encode()) + 2)
    a, b = (small_codes(rng, form, (blocks, rows, depth)) for form in (left, right))
    start = np.zeros((blocks, rows, rows), kind)
    own = np.arange(64)
    first, second = first_fragment(a, left), first_fragment(b, right)
    cases = [(size, block, 0) for size in range(blocks.bit_length()) for block in range(1 << size)]
    cases += [(0, 0, code) for code in range(1, 8)]
    for size, block, code in cases[:14] + cases[-7:]:
        width = 64 >> size
        from_a = own % width + width * block
        from_b = {
            0: own,
            1: own % 32,
            2: own % 32 + 32,
            3: (own + 16) % 64,
            **{4 + n: own % 16 + 16 * n for n in range(4)},
        }[code]
        w = one_wave()
        target = put(w, "v", 32, result_lanes(start, height))
        sources = (put(w, "v", 0, first), put(w, "v", 16, second), target)
        fields = {"cbsz": size, "abid": block, "blgp": code}
        plain = one_wave()
        moved = (put(plain, "v", 0, first[from_a]), put(plain, "v", 16, second[from_b]))
        other = put(plain, "v", 32, result_lanes(start, height))
        for wave, given, extra in ((w, sources, fields), (plain, (*moved, other), {})):
            step = mfma_step(Instruction(name, "VOP3P", 0, 8, (target,), given, extra), constant)
            assert step is not None
            step(wave)
        np.testing.assert_array_equal(get(w, target), get(plain, target))


def test_one_block_of_a_goes_to_all() -> None:
    """The example of section 7.1.6.1: CBSZ 1, ABID 1 with two blocks."""
    rng = np.random.default_rng(3)
    name = "v_mfma_f32_32x32x1_2b_f32"
    a, b = (small_codes(rng, "f32", (2, 32, 1)) for _ in range(2))
    start = np.zeros((2, 32, 32), np.float32)
    found = run_dense(name, a, b, start, one_wave(), cbsz=1, abid=1)
    x, y = numbers_of(a, "f32"), numbers_of(b, "f32")
    np.testing.assert_array_equal(found, x[1] @ y.transpose(0, 2, 1))


def test_broadcasts_that_are_not_defined() -> None:
    target = Operand("v", 0, 4)
    for fields in ({"cbsz": 1}, {"abid": 1}):
        i = Instruction("v_mfma_f32_16x16x16_f16", "VOP3P", 0, 8, (target,), (target,) * 3, fields)
        with pytest.raises(SimulationError, match="not defined for 1 block"):
            mfma_step(i, constant)


@pytest.mark.parametrize("signs", range(8))
def test_signs_of_double_products(signs: int) -> None:
    name = "v_mfma_f64_16x16x4_f64"
    rng = np.random.default_rng(signs)
    a, b = (small_codes(rng, "f64", (1, 16, 4)) for _ in range(2))
    start = start_of(rng, (1, 16, 16), np.float64)
    found = run_dense(name, a, b, start, one_wave(), blgp=signs)
    x, y, c = (-1.0 if signs >> n & 1 else 1.0 for n in range(3))
    wanted = x * numbers_of(a, "f64") @ (y * numbers_of(b, "f64")).transpose(0, 2, 1) + c * start
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("limited", "wanted"), [(False, np.inf), (True, np.finfo(np.float32).max)])
def test_overflow(limited: bool, wanted: float) -> None:
    """MODE.FP16_OVFL limits what overflows; infinities that were there stay (section 7.1.2)."""
    a = np.full((1, 16, 4), 1e30, np.float32)
    a[0, 1] = np.inf
    a[0, 2, 0] = np.nan
    b = np.full((1, 16, 4), 1e30, np.float32)
    w = one_wave()
    w.mode |= OVERFLOW_IS_LIMITED * limited
    start = np.zeros((1, 16, 16), np.float32)
    found = run_dense("v_mfma_f32_16x16x4_f32", a.view(np.uint32), b.view(np.uint32), start, w)
    assert (found[0, 0] == wanted).all()
    assert (found[0, 1] == np.inf).all()
    assert np.isnan(found[0, 2]).all()


def test_integer_overflow() -> None:
    a = np.full((1, 16, 64), 0x7F, np.uint8)
    start = np.full((1, 16, 16), 2**31 - 5, np.int32)
    name = "v_mfma_i32_16x16x64_i8"
    wrapped = run_dense(name, a, a, start, one_wave())
    assert (wrapped == np.int64(2**31 - 5 + 64 * 127 * 127 - 2**32)).all()
    w = one_wave()
    w.mode |= OVERFLOW_IS_LIMITED
    assert (run_dense(name, a, a, start, w) == 2**31 - 1).all()


@pytest.mark.parametrize(("mode", "kept"), [(0x3F0, True), (0x3C0, False)])
def test_denormal_operands_of_float32(mode: int, kept: bool) -> None:
    """Section 7.4: only products of float32 obey the denormal mode; results keep denormals."""
    tiny = np.full((1, 16, 4), 1e-40, np.float32)
    large = np.full((1, 16, 4), 2.0**100, np.float32)
    w = one_wave()
    w.mode = mode
    start = np.full((1, 16, 16), 1e-42, np.float32)
    name = "v_mfma_f32_16x16x4_f32"
    found = run_dense(name, tiny.view(np.uint32), large.view(np.uint32), start, w)
    assert (found > 1e-20).all() == kept
    assert (found != 0).all()


@pytest.mark.parametrize("set_number", [0, 1, 3])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse(name: str, set_number: int) -> None:
    """Indices are random pairs; those of the other sets are noise."""
    rows, depth, _, left, right = shape_of(name)
    kind, _ = kind_of(name)
    rng = np.random.default_rng(sum(name.encode()) + set_number)
    given = depth // 2 * rows // 64
    sets = 16 // given
    chosen = set_number % sets
    pairs = np.array([(x, y) for x in range(4) for y in range(x + 1, 4)])
    index = pairs[rng.integers(0, 6, (64, given // 2))].reshape(64, given)
    word = rng.integers(0, 1 << 32, 64, dtype=np.uint64)
    word &= ~np.uint64(((1 << 2 * given) - 1) << 2 * given * chosen)
    for n in range(given):
        word |= index[:, n].astype(np.uint64) << np.uint64(2 * (n + given * chosen))
    codes = random_codes if left == "i8" else small_codes
    a_bits = codes(rng, left, (64, given))
    b_bits = codes(rng, right, (64, 2 * given))
    x, y = numbers_of(a_bits, left), numbers_of(b_bits, right)
    dense = np.zeros((64, 2 * given))
    for lane in range(64):
        for n in range(given):
            dense[lane, 4 * (n // 2) + index[lane, n]] = x[lane, n]
    start = start_of(rng, (1, rows, rows), kind)
    wanted = start[0].astype(np.float64)
    for lane in range(64):
        group = lane // rows * rows
        # Multiply a row of A by all columns of B that are in the lanes of one group.
        wanted[lane % rows] += y[group : group + rows] @ dense[lane]
    w = one_wave()
    target = put(w, "a", 0, result_lanes(start, 4))
    operands = (
        put(w, "v", 0, np.ascontiguousarray(a_bits).view(np.uint32)),
        put(w, "v", 16, np.ascontiguousarray(b_bits).view(np.uint32)),
        put(w, "v", 40, word.astype(np.uint32)[:, None]),
    )
    fields = {"abid": chosen} if set_number != 3 else {"abid": chosen, "cbsz": 0}
    step = smfmac_step(Instruction(name, "VOP3P", 0, 8, (target,), operands, fields), constant)
    assert step is not None
    step(w)
    found = result_matrix(get(w, target), rows, 1, 4, kind)[0]
    np.testing.assert_array_equal(found, wanted.astype(np.int64).astype(kind))


def test_first_set_of_indices_where_cbsz_says_so() -> None:
    name = "v_smfmac_f32_16x16x32_f16"
    lanes = np.tile(np.array([1.0, 2.0, 3.0, 4.0], np.float16), (64, 1)).view(np.uint32)
    ones = np.ones((64, 8), np.float16)
    ones[:, 2:4] = 10
    results = []
    for fields in ({"cbsz": 1, "abid": 3}, {}):
        w = one_wave()
        target = put(w, "v", 64, np.zeros((64, 4), np.uint32))
        operands = (
            put(w, "v", 0, lanes),
            put(w, "v", 16, np.ascontiguousarray(ones).view(np.uint32)),
            put(w, "v", 40, np.full((64, 1), 0xEEEEEE44, np.uint32)),
        )
        step = smfmac_step(Instruction(name, "VOP3P", 0, 8, (target,), operands, fields), constant)
        assert step is not None
        step(w)
        results.append(get(w, target))
    np.testing.assert_array_equal(results[0], results[1])
