"""The pass runner: it verifies after each pass, keeps a module that fails, and says where."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.errors import PassError
from mxc.passes.base import Pass, Pipeline, Stage, Timing, run

SOURCE = """
func.func @f(%a: f32) -> f32 {
  %x = arith.addf %a, %a : f32 loc("layer.3")
  %y = arith.addf %a, %a : f32
  %z = arith.addf %x, %y : f32
  return %z : f32
}"""


@dataclass(frozen=True)
class Refuse(Pass):
    name = "mxc-refuse"

    def run(self, module: ir.Operation) -> None:
        op = next(iter(module.regions[0].blocks[0].operations))
        first = next(iter(op.regions[0].blocks[0].operations))
        raise PassError("wanted f16, found f32", first.location)


@dataclass(frozen=True)
class Break(Pass):
    name = "mxc-break"

    def run(self, module: ir.Operation) -> None:
        op = next(iter(module.regions[0].blocks[0].operations))
        list(op.regions[0].blocks[0].operations)[-1].operation.erase()


@dataclass(frozen=True)
class Crash(Pass):
    name = "mxc-crash"

    def run(self, module: ir.Operation) -> None:
        raise ZeroDivisionError("a bug")


@pytest.fixture
def module() -> ir.Module:
    with new_context():
        return ir.Module.parse(SOURCE)


def test_dumps_and_timings(module: ir.Module, tmp_path: Path) -> None:
    seen: list[Timing] = []
    timings = run(["cse", "canonicalize"], module, dump_dir=tmp_path, on_pass=seen.append)
    assert [(t.index, t.spec) for t in timings] == [(0, "cse"), (1, "canonicalize")]
    assert seen == timings
    assert all(t.seconds > 0 for t in timings)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00-cse.mlir", "01-canonicalize.mlir"]
    assert (tmp_path / "00-cse.mlir").read_text().count("arith.addf") == 2


def test_large_constants_are_elided_in_dumps(tmp_path: Path) -> None:
    values = ", ".join(str(float(i)) for i in range(100))
    with new_context():
        module = ir.Module.parse(
            f"func.func @f() -> tensor<100xf32> {{\n"
            f"  %c = arith.constant dense<[{values}]> : tensor<100xf32>\n"
            "  return %c : tensor<100xf32>\n}"
        )
    run(["cse"], module, dump_dir=tmp_path)
    assert "__elided__" in (tmp_path / "00-cse.mlir").read_text()


def test_a_refusal_names_the_place(module: ir.Module) -> None:
    with pytest.raises(PassError, match="wanted f16, found f32") as refusal:
        run([Refuse()], module)
    assert "layer.3" in str(refusal.value)


def test_invalid_ir_of_a_pass_of_ours_is_a_bug(module: ir.Module, tmp_path: Path) -> None:
    with pytest.raises(ir.MLIRError) as bug:
        run(["cse", Break()], module, dump_dir=tmp_path)
    kept = tmp_path / "01-mxc-break.failed.mlir"
    assert f"mxc opt {kept} --passes 'mxc-break'" in bug.value.__notes__[0]
    with new_context():
        before = ir.Module.parse(kept.read_text())
    assert str(before).count("arith.addf") == 2


def test_an_exception_keeps_its_trace(module: ir.Module, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug") as bug:
        run([Crash()], module, dump_dir=tmp_path)
    assert any(entry.path == Path(__file__) for entry in bug.traceback)


def test_a_failing_native_pass_is_a_refusal_with_its_place(tmp_path: Path) -> None:
    with new_context():
        module = ir.Module.parse(
            "func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
            '  %0 = tosa.abs %a : (tensor<2xf32>) -> tensor<2xf32> loc("layer.3")\n'
            "  return %0 : tensor<2xf32>\n}"
        )
        with pytest.raises(PassError, match="illegal op still exists") as refusal:
            run(["iree-verify-input-legality"], module, dump_dir=tmp_path)
    kept = tmp_path / "00-iree-verify-input-legality.failed.mlir"
    assert str(refusal.value).startswith("layer.3: pass iree-verify-input-legality failed")
    assert f"repeat with: mxc opt {kept}" in str(refusal.value)
    assert "tosa.abs" in kept.read_text()


def test_until() -> None:
    stages = (Stage("a", "A holds.", ("cse",)), Stage("b", "B holds.", (Refuse(),)))
    pipeline = Pipeline("cpu", stages)
    assert pipeline.passes == ("cse", Refuse())
    assert pipeline.until("a").passes == ("cse",)
    with pytest.raises(PassError, match="no stage 'c' for cpu; its stages: a, b"):
        pipeline.until("c")
