"""The instructions of a division, each alone and in the sequence that LLVM emits."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import VCC
from tests.simulator.instructions.exact import rounded
from tests.simulator.instructions.single import apply, decoded, waves
from tests.simulator.pseudocode.pcode_values import BITS, FLOAT
from tests.simulator.pseudocode.samples import held, put

#: Opcodes that this file tests with numbers.
COVERS = frozenset(f"v_div_{step}_f{width}" for step in ("scale", "fmas") for width in (32, 64))
EDGES = [0.0, -0.0, 1.0, 3.0, -7.0, np.inf, -np.inf, np.nan, 1e38, 1e-38, 3e-45, 0.1, 1e308, 5e-324]
EDGES += [2.0**-1022, 2.0**-126, 1e-300, 3e300, 1e-310]


def sequence(width: int) -> list[str]:
    """Return LLVM's instructions for v16 = v8 / v4 (pairs of registers for float64)."""

    def r(n: int) -> str:
        return f"v{n}" if width == 32 else f"v[{n}:{n + 1}]"

    d, n = r(4), r(8)
    t = f"f{width}"
    lines = [f"v_div_scale_{t} {r(20)}, s[6:7], {d}, {d}, {n}", f"v_rcp_{t} {r(22)}, {r(20)}"]
    for _ in range(1 if width == 32 else 2):
        lines.append(f"v_fma_{t} {r(24)}, -{r(20)}, {r(22)}, 1.0")
        lines.append(f"v_fma_{t} {r(22)}, {r(24)}, {r(22)}, {r(22)}")
    lines.append(f"v_div_scale_{t} {r(26)}, vcc, {n}, {d}, {n}")
    lines.append(f"v_mul_{t} {r(28)}, {r(26)}, {r(22)}")
    lines.append(f"v_fma_{t} {r(24)}, -{r(20)}, {r(28)}, {r(26)}")
    if width == 32:
        lines.append(f"v_fma_{t} {r(28)}, {r(24)}, {r(22)}, {r(28)}")
        lines.append(f"v_fma_{t} {r(24)}, -{r(20)}, {r(28)}, {r(26)}")
    lines.append(f"v_div_fmas_{t} {r(24)}, {r(24)}, {r(22)}, {r(28)}")
    lines.append(f"v_div_fixup_{t} {r(16)}, {r(24)}, {d}, {n}")
    return lines


@pytest.mark.parametrize("width", [32, 64])
def test_division(width: int, assemble: Callable[..., CodeObjectKernel]) -> None:
    """The nearest number for every pair of edge values and random ones (denormals within 1 ulp)."""
    found = decoded(assemble, dict.fromkeys(sequence(width)))
    rng = np.random.default_rng(width)
    with np.errstate(all="ignore"):
        edges = np.array(EDGES).astype(FLOAT[width])
        noise = rng.normal(0, 1, 64) * np.exp2(rng.uniform(-60, 60, 64))
        pool = np.concatenate([edges, noise.astype(FLOAT[width])])
        pairs: Any = np.stack(np.meshgrid(pool, pool)).reshape(2, -1)
        pairs = np.concatenate([pairs, np.ones((2, -pairs.shape[1] % 64), FLOAT[width])], axis=1)
        count = pairs.shape[1] // 64
        wanted = pairs[1] / pairs[0]
    w = waves(count)
    for n in range(2):
        bits = pairs[n].view(BITS[width]).astype(np.uint64).reshape(count, 64)
        put(w.v, 4 + 4 * n, bits, width == 64)
    for line in sequence(width):
        apply(found[line], w)
    bits = held(w.v, 16, (count, 64), width == 64).astype(BITS[width]).reshape(-1)
    got = bits.view(FLOAT[width])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(wanted)[number])
    normal = number & (np.abs(wanted) >= np.finfo(FLOAT[width]).smallest_normal)
    np.testing.assert_array_equal(got[normal], wanted[normal])
    small = number & ~normal
    far = bits.astype(np.int64)[small] - wanted.view(BITS[width]).astype(np.int64)[small]
    assert np.abs(far).max() <= 1


def test_what_is_scaled(assemble: Callable[..., CodeObjectKernel]) -> None:
    """The cases of v_div_scale: which operand, by how much, and whether the quotient follows."""
    cases = {
        # width, numerator, denominator: factors of the scaled denominator and numerator, the mask
        (32, 1.0, 3.0): (1.0, 1.0, False),
        (32, 2.0**100, 2.0**-20): (2.0**64, 1.0, True),
        (32, 2.0**-100, 2.0**-130): (2.0**64, 2.0**64, False),
        (32, 2.0**10, 2.0**127): (2.0**-64, 2.0**-64, False),
        (32, 1.0, 2.0**127): (2.0**-64, 1.0, True),
        (32, 2.0**-110, 2.0**20): (1.0, 2.0**64, True),
        (64, 1.0, 3.0): (1.0, 1.0, False),
        (64, 2.0**700, 2.0**-100): (2.0**128, 1.0, True),
        (64, 2.0**-1000, 2.0**60): (1.0, 2.0**128, True),
    }
    texts = {}
    for width in (32, 64):
        lines = sequence(width)
        texts[width] = [line for line in lines if "div_scale" in line]
    found = decoded(assemble, [*texts[32], *texts[64]])
    for (width, numerator, denominator), (first, second, mask) in cases.items():
        w = waves()
        for place, value in ((4, denominator), (8, numerator)):
            bits = int(np.array([value], FLOAT[width]).view(BITS[width])[0])
            put(w.v, place, np.full((1, 64), bits, np.uint64), width == 64)
        for line, factor, of, at in zip(
            texts[width], (first, second), (denominator, numerator), (20, 26), strict=True
        ):
            apply(found[line], w)
            got = held(w.v, at, (1, 64), width == 64).astype(BITS[width])
            assert (got.view(FLOAT[width]) == FLOAT[width](of * factor)).all(), (numerator, line)
        assert (w.mask(VCC) == mask).all(), (width, numerator, denominator)


def test_last_step_of_a_division(assemble: Callable[..., CodeObjectKernel]) -> None:
    """v_div_fmas: a fused multiply-add, and 2**64 (2**128) either way where VCC says so."""
    texts = ["v_div_fmas_f32 v32, v0, v8, v16", "v_div_fmas_f64 v[32:33], v[0:1], v[8:9], v[16:17]"]
    found = decoded(assemble, texts)
    rng = np.random.default_rng(5)
    for text, width, power in zip(texts, (32, 64), (64, 128), strict=True):
        w = waves()
        mask = rng.integers(0, 2, (1, 64)).astype(bool)
        w.put_mask(VCC, mask)
        numbers = rng.normal(0, 3, (3, 64)).astype(FLOAT[width])
        for n in range(3):
            put(w.v, 8 * n, numbers[n].view(BITS[width]).astype(np.uint64)[None], width == 64)
        apply(found[text], w)
        got = held(w.v, 32, (1, 64), width == 64)
        for lane in range(64):
            exact = Fraction(float(numbers[0, lane])) * Fraction(float(numbers[1, lane]))
            exact += Fraction(float(numbers[2, lane]))
            if mask[0, lane]:
                up = abs(numbers[2, lane]) >= 2
                exact *= Fraction(2) ** (power if up else -power)
            assert int(got[0, lane]) == rounded(exact, width)
