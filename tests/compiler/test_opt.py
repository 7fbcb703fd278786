"""`mxc opt` itself: files in, files out, and refusals that are, or are not, expected."""

from pathlib import Path
from typing import Any

import pytest

from mxc.compiler.opt import command, main
from mxc.errors import PassError, TargetError

TWO = """func.func @a(%x: f32) -> f32 {
  %c = arith.constant 0.0 : f32
  return %x : f32
}
// -----
func.func @b() { return }
"""

#: Less than a block; the generic is on line 2.
NOT_WHOLE = """\
func.func @f(%w: tensor<20xf4E2M1FN>, %s: tensor<1xf8E8M0FNU>, %e: tensor<f32>) -> tensor<f32> {
  %r = linalg.generic {
      indexing_maps = [
        affine_map<(k) -> (k)>, affine_map<(k) -> (k floordiv 32)>, affine_map<(k) -> ()>],
      iterator_types = ["reduction"]}
      ins(%w, %s : tensor<20xf4E2M1FN>, tensor<1xf8E8M0FNU>) outs(%e : tensor<f32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    %q = arith.addf %o, %y : f32
    linalg.yield %q : f32
  } -> tensor<f32>
  return %r : tensor<f32>
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "in.mlir"


def test_split_and_output(file: Path) -> None:
    file.write_text(TWO)
    out = file.with_name("out.mlir")
    assert command(file, passes="canonicalize", split_input_file=True, output=out) == 0
    first, second = out.read_text().split("// -----\n")
    assert "@a" in first
    assert "arith.constant" not in first
    assert "@b" in second


def test_a_refusal_names_file_and_line(file: Path) -> None:
    file.write_text(NOT_WHOLE)
    with pytest.raises(PassError, match="K=20 is not a multiple") as refusal:
        command(file, passes="mxc-expand-blocks")
    assert str(refusal.value).startswith(f"{file}:2:")


def test_the_line_is_that_of_the_file_in_a_later_program(file: Path) -> None:
    file.write_text(TWO + "// -----\n" + NOT_WHOLE)
    with pytest.raises(PassError) as refusal:
        command(file, passes="mxc-expand-blocks", split_input_file=True)
    assert str(refusal.value).startswith(f"{file}:9:")


@pytest.mark.parametrize(
    ("comment", "status", "said"),
    [
        ("// expected-error @+2 {{K=20 is not a multiple}}\n", 0, ""),
        ("// expected-error @+2 {{K=21}}\n", 1, "expected line 3: K=21; got:"),
        ("// expected-error @+1 {{K=20}}\n", 1, "expected line 2: K=20; got:"),
        ("", 1, "refused, which nothing expected"),
    ],
)
def test_expected_refusals(
    file: Path, capsys: pytest.CaptureFixture[str], comment: str, status: int, said: str
) -> None:
    file.write_text(comment + NOT_WHOLE)
    assert command(file, passes="mxc-expand-blocks", verify_diagnostics=True) == status
    assert said in capsys.readouterr().err


def test_an_expected_refusal_that_does_not_come(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("// expected-error {{K=20}}\nfunc.func @f() { return }\n")
    assert command(file, passes="mxc-expand-blocks", verify_diagnostics=True) == 1
    assert "expected a refusal: K=20; there was none" in capsys.readouterr().err


def test_text_that_is_no_program(file: Path) -> None:
    file.write_text("\nfunc.func @f() { retrun }")
    with pytest.raises(PassError, match="cannot parse the program") as refusal:
        command(file, passes="canonicalize")
    assert f"{file}:2:" in str(refusal.value)


def test_a_stage_of_a_target(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("func.func @f() { return }")
    assert command(file, target="gfx950", to="normalize") == 0
    assert "@f" in capsys.readouterr().out
    with pytest.raises(PassError, match="verify-weights runs after IREE's phase flow"):
        command(file, target="gfx950", to="verify-weights")
    with pytest.raises(TargetError, match="gfx9500"):
        command(file, target="gfx9500")
    with pytest.raises(PassError, match="no stage 'nothing' for gfx950"):
        command(file, target="gfx950", to="nothing")


def test_one_choice(file: Path) -> None:
    file.write_text("")
    both: dict[str, Any] = {"passes": "cse", "target": "cpu"}
    for chosen in ({}, both):
        with pytest.raises(PassError, match="give either --passes"):
            command(file, **chosen)
    with pytest.raises(PassError, match="--to names a stage"):
        command(file, passes="cse", to="normalize")


def test_main_prints_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(NOT_WHOLE)
    assert main([str(file), "--passes", "mxc-expand-blocks"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}:2:")
    assert error.count("\n") == 1
