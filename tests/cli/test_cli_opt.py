"""mxc opt as a command: files in any form of MLIR, refusals in one line."""

import io
from pathlib import Path

import pytest
from iree.compiler import ir
from typer.testing import CliRunner, Result

from mxc.compiler.cli import app
from mxc.dialects.context import new_context

PROGRAM = """func.func @f(%x: f32) -> f32 {
  %unused = arith.constant 0.0 : f32
  return %x : f32
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.mlir"
    path.write_text(PROGRAM)
    return path


def opt(*words: object, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["opt", *map(str, words)], input=input)


def test_text(file: Path) -> None:
    result = opt(file, "--passes", "canonicalize")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "func.func @f" in result.stdout
    assert "arith.constant" not in result.stdout


def test_standard_input() -> None:
    result = opt("-", "--passes", "canonicalize", input=PROGRAM)
    assert result.exit_code == 0, result.stderr
    assert "func.func @f" in result.stdout
    assert "arith.constant" not in result.stdout


def test_bytecode(file: Path) -> None:
    buffer = io.BytesIO()
    with new_context():
        ir.Module.parse(PROGRAM).operation.write_bytecode(buffer)
    file.write_bytes(buffer.getvalue())
    for extra in ([], ["--split-input-file"]):
        result = opt(file, "--passes", "canonicalize", *extra)
        assert result.exit_code == 0, result.stderr
        assert "func.func @f" in result.stdout
        assert "arith.constant" not in result.stdout


def test_dumps(file: Path, tmp_path: Path) -> None:
    result = opt(file, "--target", "cpu", "--to", "normalize", "--dump-ir", tmp_path / "dump")
    assert result.exit_code == 0, result.stderr
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names[0].startswith("00-mxc-")
    assert all("@f" in (tmp_path / "dump" / name).read_text() for name in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone.mlir", "--passes", "cse"), "gone.mlir: cannot be read (No such file or directory)"),
        (("p.mlir", "--passes", "mxc-nope"), "mxc-nope"),
        (("p.mlir", "--target", "gfx9500"), "(did you mean 'gfx950'?)"),
        (("p.mlir",), "give either --passes SPEC or --target TARGET"),
        (("bad.mlir", "--passes", "cse"), "bad.mlir:2:3: custom op 'retrun' is unknown"),
        (("bytes.mlir", "--passes", "cse"), "bytes.mlir: neither MLIR text nor bytecode"),
        (("p.mlir", "--passes", "cse", "-o", "no/p"), "no/p: cannot be written (No such file"),
    ],
)
def test_refusals_are_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(file.parent)
    Path("bad.mlir").write_text("func.func @f() {\n  retrun\n}")
    Path("bytes.mlir").write_bytes(b"\xff\x00\xfe")
    result = opt(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unexpected_refusal_fails(file: Path) -> None:
    file.write_text("// expected-error {{nothing}}\n" + PROGRAM)
    result = opt(file, "--passes", "canonicalize", "--verify-diagnostics")
    assert result.exit_code == 1
    assert "expected a refusal: nothing; there was none" in result.stderr
