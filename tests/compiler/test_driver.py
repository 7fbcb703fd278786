"""The driver: what it takes for a program that can be called, what it dumps, what it says."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from iree import runtime as rt

from mxc.artifact.manifest import NIBBLES, Function, TensorType
from mxc.compiler.driver import compile_here
from mxc.compiler.report import Report
from mxc.compiler.signatures import BOUNDARY, NUMBERS
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep
from mxc.errors import CompileError
from mxc.runtime.arrays import DTYPES

ADD = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Compiled]:
    """Compile a program in this process."""
    (tmp_path / "assembly").mkdir()

    def run(
        program: str, tell: Callable[[CompileStep], None] = lambda _: None, **options: Any
    ) -> Compiled:
        request = CompileRequest(
            program=program.encode(),
            place="p.mlir",
            module=tmp_path / "m.vmfb",
            **{"target": "cpu", **options},
        )
        return compile_here(request, tmp_path / "assembly", tmp_path / "program.mlirbc", tell)

    return run


def calling(*names: str) -> str:
    """Functions that call the next one, the last one whatever its name says."""
    body = "func.func @{}() {{\n  call @{}() : () -> ()\n  return\n}}\n"
    return "".join(body.format(name, other) for name, other in itertools.pairwise(names))


def identity(type: str) -> str:
    return f"func.func @f(%x: {type}) -> {type} {{\n  return %x : {type}\n}}\n"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no MLIR at all", r"does not parse: .*1:1.*custom op 'no' is unknown"),
        ("func.func @f() {\n  retrun\n}", r"does not parse: .*:2:3.*custom op 'retrun'"),
        ("", "no public function, so there is nothing to call; make one func.func or util.func"),
        (ADD.replace("@f", "private @f"), "no public function"),
        ("func.func private @g(i32) -> i32\n" + ADD, "function g has no body, .*; write its body"),
        (identity("index"), "of type index, which cannot cross the boundary; numbers of f64"),
        (identity("f16"), "of type f16, which cannot cross the boundary"),
        (identity("tensor<4xi4>"), "of type tensor<4xi4>, .*Packed elements cross as i8"),
        (identity("tensor<4x32xf4E2M1FN>"), r"f4E2M1FN>, .*named inside by flow\.tensor\.bitcast"),
        (identity("tensor<*xf32>"), "which cannot cross the boundary"),
        (calling("f", "f"), r"2:3.*: a recursive call \(f -> f\); .* write a loop"),
        (calling("f", "g", "h", "g"), r"10:3.*: a recursive call \(g -> h -> g\)"),
        (identity("tensor<4611686018427387904xf32>"), "1:1.*: func.func has a tensor .* no memory"),
        (identity("tensor<2097152x?x16777216xi8>"), "more than 17592186044416 elements"),
        (
            'util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>\n' + ADD,
            r'names the parameter #flow.parameter.named<"model"::"w"> .*; pass it as an argument',
        ),
        (
            "func.func @f() -> tensor<4xf32> {\n  %x = flow.tensor.constant "
            '#flow.parameter.named<"a"::"b"> : tensor<4xf32>\n  return %x : tensor<4xf32>\n}',
            r'2:8.*: names the parameter #flow.parameter.named<"a"::"b">',
        ),
    ],
)
def test_programs_that_cannot_be_compiled(
    compiled: Callable[..., Compiled], program: str, said: str
) -> None:
    with pytest.raises(CompileError, match=said) as caught:
        compiled(program)
    assert caught.value.phase == "start"
    assert "\n" not in str(caught.value)


def test_calls_without_a_cycle_are_compiled(compiled: Callable[..., Compiled]) -> None:
    twice = calling("h", "g") + calling("f", "g")
    assert set(compiled(twice + "func.func private @g() { return }").functions) == {"f", "h"}


def test_the_types_of_the_boundary_are_those_of_the_runtime() -> None:
    assert {*BOUNDARY, *NIBBLES} == set(DTYPES)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_passed_by_value(compiled: Callable[..., Compiled], number: str) -> None:
    functions = compiled(identity(number)).functions
    scalar = TensorType(shape=(), dtype=number)
    assert functions == {"f": Function(inputs=(scalar,), outputs=(scalar,))}


def test_public_functions_are_listed_with_their_shapes(
    compiled: Callable[..., Compiled], tmp_path: Path
) -> None:
    program = """
    func.func @main(%x: tensor<?x2xf32>, %n: i32) -> (tensor<?x2xf32>, i32) {
      return %x, %n : tensor<?x2xf32>, i32
    }
    func.func private @inner(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }
    util.func public @other(%x: tensor<f32>) -> tensor<f32> {
      %y = func.call @inner(%x) : (tensor<f32>) -> tensor<f32>
      util.return %y : tensor<f32>
    }
    """
    functions = compiled(program).functions
    rows, count = TensorType(shape=(-1, 2), dtype="f32"), TensorType(shape=(), dtype="i32")
    one = TensorType(shape=(), dtype="f32")
    assert functions == {
        "main": Function(inputs=(rows, count), outputs=(rows, count)),
        "other": Function(inputs=(one,), outputs=(one,)),
    }
    module = rt.VmModule.mmap(rt.VmInstance(), str(tmp_path / "m.vmfb"))
    assert {"main", "other"} <= set(module.function_names)
    assert "inner" not in module.function_names


def test_dumps_are_in_order_one_for_each_pass_and_phase(
    compiled: Callable[..., Compiled], linear: Callable[..., str], tmp_path: Path
) -> None:
    steps: list[CompileStep] = []
    dump = tmp_path / "dump"
    dump.mkdir()
    compiled(linear("f", "mxfp4", m=4, n=16, k=64), steps.append, dump_dir=dump)
    done = [step for step in steps if step.seconds is not None]
    found = sorted(path.name for path in dump.iterdir())
    wanted = [
        f"{n:02d}-{step.name}" if step.kind == "stage" else f"{n:02d}-iree-{step.name}.mlir"
        for n, step in enumerate(done, 1)
        if step.kind != "report"
    ]
    assert found == ["00-input.mlir", *wanted]
    passes = sorted(path.name for path in (dump / "01-normalize").iterdir())
    assert passes[0].startswith("00-mxc-")
    assert any("mxc-fuse-dequantize" in name for name in passes)
    files = [path for path in dump.rglob("*") if path.is_file()]
    assert all(len(path.read_text()) > 100 for path in files)
    texts = {re.sub(r"^\d+-", "", path.name): path.read_text() for path in files}
    assert "linalg.matmul" in texts["input.mlir"]
    assert "flow.dispatch @" in texts["iree-flow.mlir"]
    assert "stream.cmd.execute" in texts["iree-stream.mlir"]
    assert "vm.func" in texts["iree-vm.mlir"]


def test_the_report_is_of_the_cpu_that_the_code_is_for(
    compiled: Callable[..., Compiled], linear: Callable[..., str]
) -> None:
    named = compiled(linear("f", "mxfp4", m=4, n=16, k=64), target="cpu:x86-64-v3")
    (matmul,) = Report.from_dict(named.report).matmuls
    assert (matmul.m, matmul.n, matmul.k, matmul.rhs) == (4, 16, 64, "mxfp4")
    assert named.chip == "x86-64-v3"
    assert {"avx2", "fma"} <= set(named.features)
    assert "avx512f" not in named.features
    assert "zmm" not in matmul.lowering


def test_the_host_is_named_as_llvm_names_it(
    compiled: Callable[..., Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def build_report(*arguments: Any) -> Report:
        asked.append(arguments[3])
        return Report(target="cpu", matmuls=(), kernels=(), functions=())

    monkeypatch.setattr("mxc.compiler.driver.build_report", build_report)
    result = compiled(ADD)
    (record,) = asked
    assert result.chip not in ("", "host")
    assert record.chip == result.chip
    # Tiles are left out of what a program needs that has no kernel with them.
    without = {name for name in record.features if not name.startswith("amx-")}
    assert without <= set(result.features)
    assert bool(record.features) == bool({"avx2", "neon"} & set(result.features))


def test_builds_of_a_program_without_files_are_the_same_bytes(
    compiled: Callable[..., Compiled], tmp_path: Path
) -> None:
    """As models are built: operations have names, and no place in a file."""
    program = (
        'module {\n  func.func @f(%a: tensor<64xf32> loc("a")) -> tensor<64xf32> {\n'
        '    %0 = arith.addf %a, %a : tensor<64xf32> loc("x")\n'
        '    return %0 : tensor<64xf32> loc("r")\n  } loc("f")\n} loc("m")\n'
    )
    modules = set()
    for _ in range(3):
        compiled(program, target="cpu:x86-64")
        modules.add((tmp_path / "m.vmfb").read_bytes())
    assert len(modules) == 1
