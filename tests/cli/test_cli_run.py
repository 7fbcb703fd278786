"""mxc run, report and list."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mxc.artifact.manifest import MODULE, REPORT
from mxc.compiler.cli import app
from mxc.compiler.report import FunctionCost, Matmul, Report
from mxc.formats.formats import FORMATS
from mxc.formats.reference import Quantized, dequantize, quantize
from mxc.targets.target import TARGETS

MATMUL = Matmul(
    name="layers.0.q",
    function="decode",
    batch=1,
    m=1,
    n=64,
    k=64,
    lhs="f32",
    rhs="mxfp4",
    out="f32",
    kernel="decode$async_dispatch_0",
    lowering="vfmadd",
    kernels=1,
    bytes_moved=2700,
    bytes_minimum=2688,
    fallback=None,
)
FALLEN = replace(MATMUL, name="layers.1.q", fallback="no dot product was found")


def reported(*matmuls: Matmul) -> str:
    cost = FunctionCost(name="decode", dispatches=2, transient_bytes=512, dynamic_transients=0)
    return Report(target="cpu", matmuls=matmuls, kernels=(), functions=(cost,)).to_json()


def mxc(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_run_writes_results(plain_artifact: Path, tmp_path: Path) -> None:
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([0.5, 0.5, 0.5, 0.5], np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    words = ["run", plain_artifact, "--input", tmp_path / "a.npy", "--input", tmp_path / "b.npy"]
    result = mxc(*words, "--output", tmp_path / "y.npy")
    assert (result.exit_code, result.stdout) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), a + b)
    shown = mxc(*words)
    assert "result 0: float32 [4]\n[1.5 2.5 3.5 4.5]" in shown.stdout


@pytest.mark.parametrize("stored", ["ml_dtypes", "uint16"])
def test_run_with_types_that_npy_cannot_name(
    plain_artifact: Path, tmp_path: Path, stored: str
) -> None:
    values = np.array([1.5, -2, 0, 3], ml_dtypes.bfloat16)
    small = np.array([0.5, -448], ml_dtypes.float8_e4m3fn)
    np.save(tmp_path / "a.npy", values if stored == "ml_dtypes" else values.view(np.uint16))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), bool))
    np.save(tmp_path / "d.npy", small if stored == "ml_dtypes" else small.view(np.uint8))
    files = [tmp_path / f"y{index}.npy" for index in range(4)]
    inputs = (tmp_path / "a.npy", tmp_path / "b.npy", "-7", tmp_path / "d.npy")
    words: list[object] = ["run", plain_artifact, "--function", "types"]
    for value in inputs:
        words += ["--input", value]
    for file in files:
        words += ["--output", file]
    result = mxc(*words)
    assert result.exit_code == 0, result.stderr
    doubled = np.load(files[0])
    assert doubled.dtype.itemsize == 2
    np.testing.assert_array_equal(doubled.view(ml_dtypes.bfloat16), values + values)
    assert np.load(files[2]) == -7
    np.testing.assert_array_equal(np.load(files[3]).view(small.dtype), small)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--function", "nope"], "no function 'nope'; it has: main, types"),
        ([], "main: takes 2 arguments (f32 [4], f32 [4]), got 0"),
        (["--input", "gone.npy"], "--input gone.npy: cannot be read"),
        (["--input", "{text}"], "text.npy: not a .npy file"),
        (["--input", "{huge}"], "huge.npy: not a .npy file (mmap length is greater"),
        (["--input", "{deep}"], "deep.npy: not a .npy file"),
        (["--input", "{f64}", "--input", "{f64}"], "main, argument 0: wants f32 [4], got float64"),
        (["--function", "rank0", "--input", "x"], "--input x: neither a file nor a number"),
        (
            ["--function", "rank0", "--input", "1", "--input", "2", *["--output", "y.npy"] * 2],
            "rank0 has 1 results, --output was given 2 times",
        ),
        (
            ["--function", "rank0", "--input", "1", "--input", "2", "--output", "{dir}/no/y.npy"],
            "y.npy: cannot be written (No such file or directory)",
        ),
    ],
)
def test_refused_runs(plain_artifact: Path, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "f64.npy", np.zeros(4))
    shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"
    for name, header in (("huge", shape), ("deep", b"(" * 5000)):
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        (tmp_path / f"{name}.npy").write_bytes(data)
    names = ("text", "f64", "huge", "deep")
    places = {"dir": tmp_path, **{name: tmp_path / f"{name}.npy" for name in names}}
    result = mxc("run", plain_artifact, *(word.format(**places) for word in words))
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], list[Quantized]]:
    """The command that returns four packed arrays, and what they are two by two."""
    folder = tmp_path_factory.mktemp("blocks")
    values = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    made = [quantize(values, "mxfp4"), quantize(values, "mxfp6e3m2")]
    arrays = [made[0].elements, made[0].scales, made[1].elements.reshape(3, 2, 24), made[1].scales]
    types = [f"tensor<{'x'.join(map(str, array.shape))}xi8>" for array in arrays]
    arguments = ", ".join(f"%{index}: {type}" for index, type in enumerate(types))
    (folder / "same.mlir").write_text(
        f"func.func @main({arguments}) -> ({', '.join(types)}) {{\n"
        f"  return %0, %1, %2, %3 : {', '.join(types)}\n}}\n"
    )
    result = mxc("compile", folder / "same.mlir", "--target", "cpu", "-o", folder / "same.mxc")
    assert result.exit_code == 0, result.stderr
    words: list[object] = ["run", folder / "same.mxc"]
    for index, array in enumerate(arrays):
        np.save(folder / f"{index}.npy", array)
        words += ["--input", folder / f"{index}.npy"]
    return words, made


def test_run_unpacks_results(blocks: tuple[list[object], list[Quantized]], tmp_path: Path) -> None:
    words, (four, six) = blocks
    files = [tmp_path / f"y{index}.npy" for index in range(4)]
    words = [*words, "--unpack", "0=mxfp4:1", "--unpack", "2=mxfp6e3m2:3"]
    shown = mxc(*words).stdout
    assert f"result 0: float32 [3, 64]\n{dequantize(four)}" in shown
    assert "result 1: int8 [3, 2]" in shown
    for file in files:
        words += ["--output", file]
    assert mxc(*words).exit_code == 0
    np.testing.assert_array_equal(np.load(files[0]), dequantize(four))
    np.testing.assert_array_equal(np.load(files[2]).reshape(3, 64), dequantize(six))
    # Without scales: the numbers of the codes, as ml_dtypes has them.
    assert mxc(*words, "--unpack", "0=mxfp4").exit_code == 0
    codes = np.stack([four.elements & 15, four.elements >> 4], -1).reshape(3, 64)
    wanted = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(np.load(files[0]), wanted)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("mxfp4", "wants RESULT=FORMAT or RESULT=FORMAT:SCALES, as 0=mxfp4:1"),
        ("0=mxfp5", "unknown format 'mxfp5'"),
        ("4=mxfp4", "there is no result 4; the function has 4"),
        ("0=mxfp4:3x", "wants RESULT=FORMAT"),
        ("0=mxfp4:2", "mxfp4 elements [3, 64] want scales [3, 2], found [3, 2, 24]"),
        ("1=mxfp4:0", "wants a block axis that is a multiple of 32 elements, found 4"),
    ],
)
def test_unpacking_that_does_not_fit_is_refused(
    blocks: tuple[list[object], list[Quantized]], asked: str, message: str
) -> None:
    result = mxc(*blocks[0], "--unpack", asked)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert message in result.stderr


def test_only_bytes_are_unpacked(plain_artifact: Path) -> None:
    words = ("run", plain_artifact, "--function", "rank0", "--input", "1", "--input", "2")
    result = mxc(*words, "--unpack", "0=mxfp4")
    assert "are of one byte, found result 0 of float32 []" in result.stderr


def test_run_of_a_number(plain_artifact: Path) -> None:
    result = mxc("run", plain_artifact, "--function", "rank0", "--input", "3.5", "--input", "1")
    assert result.stdout == "result 0: float32 []\n2.5\n"


def test_report(plain_artifact: Path) -> None:
    (plain_artifact / REPORT).write_text(reported(MATMUL, FALLEN))
    result = mxc("report", plain_artifact)
    assert result.exit_code == 0, result.stderr
    assert "no dot product was found" in result.stdout
    assert json.loads(mxc("report", plain_artifact, "--json").stdout) == json.loads(
        reported(MATMUL, FALLEN)
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_strict_report(plain_artifact: Path, options: list[str]) -> None:
    (plain_artifact / REPORT).write_text(reported(MATMUL, FALLEN))
    assert mxc("report", plain_artifact, "--strict", *options).exit_code == 1
    (plain_artifact / REPORT).write_text(reported(MATMUL))
    assert mxc("report", plain_artifact, "--strict", *options).exit_code == 0


def test_verified_report(plain_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain_artifact / REPORT).write_text(reported(MATMUL, FALLEN))
    assert mxc("report", plain_artifact, "--verify").exit_code == 0
    data = bytearray((plain_artifact / MODULE).read_bytes())
    data[100] ^= 1
    (plain_artifact / MODULE).write_bytes(data)
    assert mxc("report", plain_artifact).exit_code == 0
    result = mxc("report", plain_artifact, "--verify")
    assert result.exit_code == 1
    assert "module.vmfb: altered after it was written" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "report.json: missing"),
        ("{", "report.json: not JSON"),
        ('"\\ud800"', r"report.json: a string is not Unicode: it holds \ud800"),
        ("[]", "report.json: not a report"),
        ('{"matmuls": []}', "report.json: malformed: target: missing"),
        ('{"matmuls": 7}', "report.json: malformed: target: missing"),
        ('{"levels": {"a": {"target": 3}}, "archives": []}', "levels.a.target: wants a string"),
        ('{"levels": 5}', "malformed: levels: wants an object, found 5"),
    ],
)
def test_damaged_reports(plain_artifact: Path, content: str | None, message: str) -> None:
    if content is not None:
        (plain_artifact / REPORT).write_text(content)
    result = mxc("report", plain_artifact)
    assert result.exit_code == 1
    assert message in result.stderr


def test_lists() -> None:
    formats = json.loads(mxc("list", "formats", "--json").stdout)
    assert [row["name"] for row in formats] == list(FORMATS)
    mxfp4 = formats[0]
    # OCP MX 1.0, table 1 and section 5.3.3
    assert (mxfp4["largest"], mxfp4["smallest"], mxfp4["block"]) == (6.0, 0.5, 32)
    assert mxfp4["bits_per_element"] == 4.25
    recipes = {row["name"]: row for row in json.loads(mxc("list", "recipes", "--json").stdout)}
    # The scales that make 7 fit, or not, into [-6, 6].
    assert {name: row["7"] for name, row in recipes.items()} == {
        "floor": 1.0,
        "even": 2.0,
        "rceil": 2.0,
        "ceil": 2.0,
    }
    assert {name: row["6.5"] for name, row in recipes.items()}["rceil"] == 2.0
    targets = json.loads(mxc("list", "targets", "--json").stdout)
    assert [row["name"] for row in targets] == list(TARGETS)
    for kind in ("formats", "recipes", "targets"):
        shown = mxc("list", kind)
        assert shown.exit_code == 0, shown.stderr
    assert "gfx950" in shown.stdout
    assert mxc("list", "nonsense").exit_code == 2
