"""The benchmarks of the CPU work: on tiny problems, with wrong products refused, and with the peer
named where it is missing. What they measure is not looked at here."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiles
from contractions import exact_product
from ggml import MISSING
from problems import COLD_BYTES, SHAPES, Shape, Weights, draw_weights, relative_error
from repetitions import Time, interleave
from rows import Row, wanted

Run = Callable[..., subprocess.CompletedProcess[str]]

CPU = Path(__file__).resolve().parents[2] / "benchmarks" / "cpu"
SCRIPTS = sorted(
    path.name for path in CPU.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()
)
#: Scripts that mean nothing without the peer, with the words that make them begin at once.
NEED_PEER = {"peer.py": (), "matmul.py": ("--quick",)}


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str, run: Run) -> None:
    result = run(script, "--help")
    assert result.returncode == 0, result.stderr
    assert "--json" in result.stdout


@pytest.mark.parametrize("script", NEED_PEER)
def test_a_missing_peer_is_said_in_a_line(script: str, run: Run) -> None:
    result = run(script, *NEED_PEER[script])
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == MISSING + "\n"


def test_limits(run: Run) -> None:
    result = run("limits.py", "--threads", "1", "--seconds", "0.02", "--memory-mib", "4", "--json")
    assert result.returncode == 0, result.stderr
    (limits,) = json.loads(result.stdout)
    assert limits.pop("threads") == 1
    instructions = {"vpdpbusd", "vpmaddubsw", "vdpbf16ps", "fma", "tdpbf16ps", "loaded_tiles"}
    assert set(limits) == instructions | {"dram_read", "dram_sustained"}
    assert limits["dram_read"] > 0
    # A multiply-add of 8 or 16 lanes, as often as a slow CPU can and no CPU does.
    assert limits["fma"] is None or 1 < limits["fma"] < 10_000


def test_formats_are_measured(run: Run) -> None:
    words = "--shape 32x32 --rows 1,3 --modes i8 --threads 1 --seconds 0.01 --memory-mib 4"
    result = run("formats.py", *words.split(), "--cold-mib", "0", "--json")
    assert not result.stderr
    rows = json.loads(result.stdout)["rows"]
    wanted = [(format, m) for m in (1, 3) for format in ("mxfp4", "nvfp4")]
    assert [(row["format"], row["m"]) for row in rows] == wanted
    assert all(row["ms"] > 0 and row["of_limit"] > 0 for row in rows)


def test_products_are_measured_and_checked(run: Run) -> None:
    words = "--no-peer --no-stock --shapes 48x32,32x32 --rows 1,3 --modes bf16,f32 --threads 1"
    sizes = "--seconds 0.01 --memory-mib 4 --cold-mib 0 --json"
    result = run("matmul.py", *words.split(), *sizes.split())
    assert not result.stderr
    found = json.loads(result.stdout)
    rows = {(row["shape"], row["m"], row["mode"]): row for row in found["rows"]}
    assert set(rows) == {(s, m, t) for s in ("48x32", "32x32") for m in (1, 3) for t in TYPES}
    for (_, m, mode), row in rows.items():
        assert row["ms"] > 0
        assert row["error"] < TYPES[mode]
        assert row["of_peer"] is None
        assert row["passes"] in ((None,) if mode == "f32" or m == 3 else (None, False))
    assert result.returncode == any(row["passes"] is False for row in rows.values())


def test_tiles_are_measured_where_there_are_some(run: Run) -> None:
    words = "--no-peer --shapes 48x32 --rows 1,20 --threads 1 --seconds 0.01 --cold-mib 0 --json"
    result = run("tiles.py", *words.split())
    assert (result.returncode, result.stderr) == (0, "")
    if result.stdout.startswith("this machine has no tiles of AMX"):
        return
    rows = json.loads(result.stdout)["rows"]
    assert [(row["m"], row["mode"]) for row in rows] == [
        (m, mode) for m in (1, 20) for mode in ("bf16", "f32")
    ]
    for row in rows:
        assert row["error"] < TYPES[row["mode"]]
        assert min(row["ms"], row["vectors_ms"], row["peak"]) > 0
        assert (row["peer_ms"], row["passes"]) == (None, None)


def test_without_tiles_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiles, "best_isa", lambda _: "avx512-bf16")
    monkeypatch.setattr(sys, "argv", ["tiles.py"])
    assert tiles.main() == 0
    assert capsys.readouterr().out.startswith("this machine has no tiles of AMX")


#: Activations in f32 and in bf16 are a factor of 2^16 apart.
TYPES = {"f32": 1e-6, "bf16": 4e-3}


def test_beside_stock_iree_the_result_is_exact() -> None:
    from stock import measure_stock

    found = measure_stock(threads=1, seconds=0.01, m=3, problem=Shape(32, 64))
    assert (found.error, found.stock_error) == (0, 0)
    assert found.ratio > 0


def test_weights_mean_the_same_to_both() -> None:
    w = draw_weights(Shape(3, 64))
    low, high = w.packed & 15, w.packed >> 4
    np.testing.assert_array_equal(np.stack([low, high], -1).reshape(w.codes.shape), w.codes)
    ggml = w.ggml
    assert ggml.shape == (3, 2, 17)
    np.testing.assert_array_equal(ggml[..., 0], w.scales)
    halves = np.concatenate([ggml[..., 1:] & 15, ggml[..., 1:] >> 4], -1)
    np.testing.assert_array_equal(halves, w.codes)


def test_a_wrong_product_is_seen() -> None:
    shape = Shape(40, 64)
    w = draw_weights(shape)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    right = (x.astype(np.float64) @ w.values(np.arange(40)).T).astype(np.float32)
    assert relative_error(right, x, w) < 1e-6
    other = Weights(w.codes, np.roll(w.scales, 1, axis=0))
    assert relative_error(right, x, other) > 0.2


def test_the_integer_reference() -> None:
    x, w = draw_weights(Shape(5, 96), 1), draw_weights(Shape(7, 96), 2)
    wanted_ = x.values(np.arange(5)) @ w.values(np.arange(7)).T
    np.testing.assert_array_equal(exact_product(x, w), wanted_.astype(np.float32))
    with pytest.raises(ValueError, match="too far"):
        exact_product(x, Weights(w.codes, w.scales // 2))


@pytest.mark.parametrize("m", [1, 8, 512])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotations_are_colder_than_caches(shape: Shape, m: int) -> None:
    assert shape.bytes == draw_weights(Shape(32, shape.k)).ggml.size * shape.n // 32
    least = COLD_BYTES if m == 1 else 64 << 20
    assert shape.copies(m) * shape.bytes >= least
    assert shape.copies(m, 0) == 2


def test_repetitions_alternate() -> None:
    seen: list[str] = []
    times = interleave(
        {name: partial(seen.append, name) for name in "ab"}, seconds=0, rounds=9, settle=0
    )
    rounds = {"".join(seen[at : at + 2]) for at in range(0, 20, 2)}
    assert len(seen) == 20
    assert rounds == {"ab", "ba"}, "each round has both, and none always follows the other"
    assert {name: time.repetitions for name, time in times.items()} == {"a": 9, "b": 9}
    assert all(0 <= time.least <= time.median for time in times.values())


def row(mode: str, m: int, seconds: float, peer: float | None, limit: float | None) -> Row:
    time = None if peer is None else Time(peer, peer, 1)
    return Row(Shape(4096, 4096), m, mode, Time(seconds, seconds, 1), time, 0.0, None, limit)


def test_a_row_passes_where_all_is_as_wanted() -> None:
    operations = 2 * 128 * 4096 * 4096
    good = row("i8", 128, 1e-3, 3e-3, operations / 1e-3 / 1e9 / 0.7)
    assert good.of_limit == pytest.approx(0.7)
    assert good.of_peer == pytest.approx(3)
    assert good.passes is True
    assert replace(good, peer=Time(2.1e-3, 2.1e-3, 1)).passes is False
    assert replace(good, limit=2 * good.gflops).passes is False
    assert replace(good, peer=None).passes is None
    assert replace(good, peer=None, limit=2 * good.gflops).passes is False
    # At one row the limit is that of reading.
    cold = row("bf16", 1, 1e-3, 1.2e-3, 4096 * 4096 / 32 * 17 / 1e-3 / 1e9 / 0.9)
    assert cold.of_limit == pytest.approx(0.9)
    assert cold.passes is True
    assert row("f32", 8, 1.0, 0.1, 1.0).passes is None


def test_what_is_wanted() -> None:
    found = {(mode, m): wanted(mode, m) for mode in ("i8", "bf16", "f32") for m in (1, 8, 32, 512)}
    peers = {key: want.peer for key, want in found.items() if want.peer is not None}
    limits = {key: want.limit for key, want in found.items() if want.limit is not None}
    assert peers == {
        ("i8", 1): 1.15, ("i8", 8): 2.0, ("i8", 32): 2.2, ("i8", 512): 2.2,
        ("bf16", 1): 1.15, ("bf16", 8): 1.4, ("bf16", 32): 1.5, ("bf16", 512): 1.5,
    }  # fmt: skip
    assert limits == {
        ("i8", 1): 0.85, ("i8", 32): 0.6, ("i8", 512): 0.6, ("f32", 512): 0.7,
        ("bf16", 1): 0.85, ("bf16", 32): 0.8, ("bf16", 512): 0.8,
    }  # fmt: skip
