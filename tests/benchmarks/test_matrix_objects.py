"""The matrix reads code objects: it finds what a report says otherwise, and nothing else."""

import dataclasses
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import matrix
import pytest
from fuzz.description import (
    ACCUMULATORS,
    BROADCASTS,
    CONTRACTIONS,
    ELEMENTS,
    ENDINGS,
    EPILOGUES,
    FACTORS,
    KINDS,
    LAYOUTS,
    STYLES,
    Program,
    Side,
    fault,
)
from iree.compiler import ir
from matrix_case import Case
from matrix_objects import Module, disagreements, read
from matrix_rows import Row
from matrix_spellings import spelled, spelling_cases

from mxc.compiler.report import Report
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.steps import CompileRequest
from mxc.compiler.worker import compile_program
from mxc.dialects.context import new_context
from mxc.targets.target import target

GFX950 = target("gfx950")
SIDE = Side(format="mxfp4", style="inline")
#: A kernel of ours, and one of IREE's after it.
PROGRAM = Program(lhs=SIDE, rhs=SIDE, m=4, n=32, k=128, ending="quantize")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Module]:
    file = tmp_path_factory.mktemp("objects") / "module.vmfb"
    found = compile_program(
        CompileRequest(program=spelled(PROGRAM), place="here", target="gfx950", module=file,
                parameters=True)
    )  # fmt: skip
    ((name, function),) = found.functions.items()
    return Report.from_dict(found.report), read(file, function, name)


def judged(report: Report, module: Module, *, alone: bool = False) -> list[str]:
    return disagreements(report, [module], GFX950, alone=alone, gathers=False)


def test_a_report_agrees_with_its_module(compiled: tuple[Report, Module]) -> None:
    report, module = compiled
    assert judged(report, module) == []
    (matmul,) = report.matmuls
    kernel = module.kernels[matmul.kernel]
    assert kernel.instructions["v_mfma_scale_f32_16x16x128_f8f6f4"] > 0
    assert len(module.calls) == len(report.operations) == 3
    # Activations and weights of 64 + 4 bytes a row, and 4 rows of 32 floats.
    assert module.calls[0].bytes == (4 + 32) * (64 + 4) + 4 * 32 * 4


Change = Callable[[Report], Report]


def of_kernel(**fields: Any) -> Change:
    def change(report: Report) -> Report:
        (own,) = (each for each in report.kernels if each.name == report.matmuls[0].kernel)
        others = (each for each in report.kernels if each is not own)
        changed: KernelCode = dataclasses.replace(own, **fields)
        return dataclasses.replace(report, kernels=(changed, *others))

    return change


def of_contraction(**fields: Any) -> Change:
    return lambda report: dataclasses.replace(
        report, matmuls=(dataclasses.replace(report.matmuls[0], **fields),)
    )


def without_instruction(report: Report) -> Report:
    kernel = next(each for each in report.kernels if each.name == report.matmuls[0].kernel)
    left = {name: n for name, n in kernel.instructions.items() if not name.startswith("v_mfma")}
    return of_kernel(instructions=left)(report)


def without_operation(report: Report) -> Report:
    return dataclasses.replace(report, operations=report.operations[:-1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_kernel(spills=2), "spilled registers: 2 in the report, 0 in the code"),
        (of_kernel(scratch_bytes=8), "bytes of scratch: 8 in the report"),
        (of_kernel(lds_bytes=4), "bytes of LDS: 4 in the report"),
        (of_kernel(vgpr=500), "registers: 500 in the report"),
        (of_kernel(name="other"), "is only in the module"),
        (without_instruction, "v_mfma_scale_f32_16x16x128_f8f6f4: 0 in the report"),
        (without_operation, "is no operation of the report"),
        (lambda report: dataclasses.replace(report, matmuls=()), "no contraction of the report"),
        (of_contraction(lowering="v_fma_f32"), "no v_fma_f32 in @"),
        (lambda report: dataclasses.replace(report, functions=()), "0 dispatches in the report"),
        (
            lambda report: dataclasses.replace(
                report,
                operations=tuple(
                    dataclasses.replace(each, bytes_moved=10**6) for each in report.operations
                ),
            ),
            "3000000 bytes moved in the report",
        ),
    ],
)
def test_what_is_otherwise_is_found(
    compiled: tuple[Report, Module], change: Change, said: str
) -> None:
    report, module = compiled
    found = judged(change(report), module)
    assert any(said in each for each in found), found


def test_kernels_behind_a_contraction_are_counted(compiled: tuple[Report, Module]) -> None:
    report, module = compiled
    assert judged(report, module, alone=True) == ["1 kernels of the contraction, 3 dispatches"]
    whole = dataclasses.replace(report.matmuls[0], kernels=3)
    assert judged(dataclasses.replace(report, matmuls=(whole,)), module, alone=True) == []


def test_programs_of_others_are_programs_at_the_shapes_of_models() -> None:
    found = list(spelling_cases())
    assert len({case.name for case in found}) == len(found)
    programs = [case.spelled for case in found if case.spelled]
    assert not any(map(fault, programs))
    # Nothing of what a description can say is left out.
    assert {program.contraction for program in programs} == set(CONTRACTIONS)
    assert {program.accumulator for program in programs} == set(ACCUMULATORS)
    assert {program.ending for program in programs} == set(ENDINGS)
    assert {each for program in programs for each in program.epilogue} == set(EPILOGUES)
    sides = [program.rhs for program in programs]
    for piece, every in (
        ("elements", ELEMENTS), ("factor", FACTORS), ("broadcast", BROADCASTS), ("style", STYLES),
    ):  # fmt: skip
        assert {getattr(side, piece) for side in sides} == set(every)
    assert {side.kind for side in sides} == set(KINDS)
    assert {(side.layout, side.scales) for side in sides} == set(product(LAYOUTS, LAYOUTS))
    with new_context():
        for case in found[::10]:
            assert case.spelled is not None
            assert ir.Module.parse(spelled(case.spelled)).operation.verify()


def test_weights_of_a_spelling_are_parameters() -> None:
    text = spelled(Program(lhs=Side(format="bf16"), rhs=SIDE, m=4, n=32, k=64)).decode()
    assert text.count("util.global private") == 2
    assert "func.func @main(%lhs: tensor<4x64xbf16>)" in text


def test_rows_that_are_known_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def measure(case: Case, record: object) -> Row:
        measured.append(case.name)
        return Row(name=case.name, group=case.group, target="gfx950", seconds=1)

    monkeypatch.setattr(matrix, "measure", measure)
    file = tmp_path / "rows.jsonl"
    for last in "12", "124":
        words = ["--filter", f"^shape f4 M[{last}]$", "--output", str(file), "--resume"]
        monkeypatch.setattr("sys.argv", ["matrix.py", *words])
        matrix.main()
    assert measured == ["shape f4 M1", "shape f4 M2", "shape f4 M4"]
    assert [row.name for row in matrix.read(file)] == measured
