"""The matrix of contractions and the tools for hot loops: what they build, judge and print."""

import dataclasses
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import loops
import mca
import pytest
from iree.compiler import ir
from matrix_cases import cases
from matrix_programs import program
from matrix_rows import BARS, Row, counts, differences, misses, row

from mxc.compiler.report import Matmul, Report
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.hot_loop import HotLoop
from mxc.compiler.report.loops import LoopInstruction
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import walk
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import match_scaled_contraction
from mxc.errors import FormatError
from mxc.targets.target import target

GPU = Path(loops.__file__).parent
GFX950 = target("gfx950")
BY_NAME = {case.name: case for case in cases()}


def test_every_layer_of_the_models_is_there_at_every_number_of_rows() -> None:
    models = [case for case in BY_NAME.values() if case.group == "model"]
    assert {case.m for case in models} == {1, 16, 128, 1000, 4096}
    assert len(models) % (5 * 4) == 0
    experts = {(c.n, c.k, c.experts, c.choices) for c in models if c.experts}
    assert {(5760, 2880, 32, 4), (2880, 2880, 128, 4), (2048, 7168, 256, 8)} <= experts
    pairs = {(case.lhs, case.rhs) for case in BY_NAME.values() if case.group == "pair"}
    decoded = {pair for pair in pairs if {"nvf4", "int8"} & {*pair}}
    assert (len(pairs - decoded), len(decoded)) == (25, 10)


@pytest.mark.parametrize(
    "name",
    [
        "pair e4m3xf4",
        "pair f6e2m3xf6e3m2 M16 K2880",
        "pair f4xf4 block 16",
        "weight-only bf16xnvf4 M16 K2880",
        "shape f4 dynamic M K4096",
        "batch B4 M1 K2880",
        "batch B8 M128 one weight",
        "epilogue bias and SiLU f4xf4 M1 K2880",
        "activations bf16 to e4m3 by f4 M100 K2880",
        "model deepseek-r1 experts up M16 e4m3xf4",
    ],
)
def test_a_canonical_case_is_one_contraction_of_its_sizes(name: str) -> None:
    case = BY_NAME[name]
    with new_context():
        module = ir.Module.parse(program(case))
        found = [match_scaled_contraction(op) for op in walk(module.operation)]
        (one,) = [each for each in found if not isinstance(each, Reason)]
        rows = case.group_rows[1] if case.experts else case.m
        assert (one.m, one.n, one.k) == (rows, case.n, case.k)
        assert one.is_canonical
        assert (one.lhs_scale is None) == case.weight_only
        assert one.block == (case.block or (16 if case.rhs == "nvf4" else 32))


def test_every_other_program_is_valid_or_refused_by_its_builder() -> None:
    refused = []
    for case in BY_NAME.values():
        if case.group in ("form", "quantize") or case.form == "dequantized":
            try:
                text = program(case)
            except FormatError:
                refused.append(case.name)
                continue
            with new_context():
                assert ir.Module.parse(text).operation.verify()
    assert all(name.startswith("quantize") and "f6" in name for name in refused)


def kernel(name: str = "k", **fields: Any) -> dict[str, Any]:
    own = {"v_mfma_scale_f32_16x16x128_f8f6f4": 4}
    made = KernelCode(name=name, instructions=own, vgpr=90, lds_bytes=0)
    return dataclasses.asdict(made) | fields


def loop(**fields: Any) -> dict[str, Any]:
    made = HotLoop(is_loop=True, instructions=9, census={"matrix": 4})
    return dataclasses.asdict(made) | fields


def report(**fields: Any) -> dict[str, Any]:
    product = Matmul(
        name="contraction", function="main", batch=1, m=1, n=1, k=1, lhs="mxfp4", rhs="mxfp4",
        out="f32", kernel="k", lowering="v_mfma_scale", kernels=1, bytes_moved=9_000_000,
        bytes_minimum=None, fallback=None,
    )  # fmt: skip
    made = Report(target="gfx950", matmuls=(product,), kernels=(), functions=())
    return made.to_dict() | {"kernels": [kernel()], "dispatches": 1} | fields


def test_a_row_is_read_from_the_report_and_meets_what_is_asked() -> None:
    case = BY_NAME["shape f4 M1"]
    found = row(case, GFX950, report(), 1.0)
    # 4096 rows of 2048 + 128 bytes, one row of activations, 4096 floats.
    assert found.bytes_minimum == 4097 * (2048 + 128) + 4096 * 4
    assert found.moved == pytest.approx(9_000_000 / found.bytes_minimum)
    assert (found.kind, found.vgpr, found.packed) == ("scaled matrix", 90, True)
    assert misses(case, found, GFX950) == []


@pytest.mark.parametrize(
    ("name", "given", "missed"),
    [
        ("shape f4 M16", {"kernels": [kernel(instructions={"v_fma_f32": 1})]}, "matrix"),
        ("shape f4 M16", {"kernels": [kernel(spills=3)]}, "no spills"),
        ("shape f4 M16", {"kernels": [kernel(scratch_bytes=4)]}, "no scratch"),
        ("shape f4 M16", {"dispatches": 2}, "kernels"),
        ("shape f4 M16", {"dispatches": 0}, "kernels"),
        ("shape f4 M16", {"findings": ["a weight is copied"]}, "weights stay packed"),
        ("shape f4 M1", {}, "M < 16"),
        # 8 TB/s for 0.8 us, by 256 units, are 25000 bytes.
        ("shape f4 M256", {"kernels": [kernel(hot_loop=loop(bytes_in_flight=24999))]}, "M 16 to"),
    ],
)
def test_each_bar_can_be_missed(name: str, given: dict[str, Any], missed: str) -> None:
    case, what = BY_NAME[name], report(**given)
    what["matmuls"][0]["bytes_moved"] = 99_000_000
    (only,) = misses(case, row(case, GFX950, what, 1.0), GFX950)
    assert only.startswith(missed)


def test_fewer_bytes_than_the_minimum_are_missed_traffic() -> None:
    case, what = BY_NAME["shape f4 M8"], report()
    (only,) = misses(case, row(case, GFX950, what, 1.0), GFX950)
    assert only.startswith("no fewer")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("shape f4 M256", loop(bytes_in_flight=25000)),
        # All is asked for at once; and there matrix cores decide.
        ("shape f4 M256", loop(bytes_in_flight=9, is_loop=False)),
        ("pair f4xf4", loop(bytes_in_flight=9)),
    ],
)
def test_bytes_in_flight_are_enough(name: str, given: dict[str, Any]) -> None:
    case, what = BY_NAME[name], report(kernels=[kernel(hot_loop=given)])
    what["matmuls"][0]["bytes_moved"] = 99_000_000
    assert misses(case, row(case, GFX950, what, 1.0), GFX950) == []


def test_weight_only_is_met_by_a_matrix_instruction_and_quantizing_takes_a_kernel() -> None:
    bf16 = report(kernels=[kernel(instructions={"v_mfma_f32_16x16x32_bf16": 2})], dispatches=2)
    weight_only = BY_NAME["weight-only bf16xf4 M16 K2880"]
    assert misses(weight_only, row(weight_only, GFX950, bf16, 1.0), GFX950) == [
        "kernels: 1, 2 with activations quantized, 3 the result"
    ]
    quantized = BY_NAME["activations bf16 to f4 by f4 M100 K2880"]
    assert misses(quantized, row(quantized, GFX950, bf16, 1.0), GFX950) == [BARS[1].name]


def test_a_refusal_meets_nothing() -> None:
    case = BY_NAME["shape f4 M16"]
    failed = Row(name=case.name, group="shape", target="gfx950", seconds=1, failed="no")
    assert misses(case, failed, GFX950) == ["compiles"]
    assert all(met == 0 for _, met, _ in counts([(case, failed)], GFX950))


def test_runs_are_compared_by_what_matters() -> None:
    old = Row(name="a", group="g", target="gfx950", seconds=1, kernels=2, matrix_share=0.5)
    new = dataclasses.replace(old, seconds=9.0, kernels=1, matrix_share=0.4, kind="matrix")
    assert differences([old], [new, dataclasses.replace(new, name="other")]) == [
        "gfx950 a: kind 'none' -> 'matrix'",
        "gfx950 a: kernels 2 -> 1 better",
        "gfx950 a: matrix_share 0.5 -> 0.4 worse",
    ]
    assert not differences([new], [new])


def start(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_matrix_as_a_command(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    one = start(GPU / "matrix.py", "--filter", "^shape f4 M16 N16 K128$", "--output", file)
    assert "gfx950: 1 cases" in one.stdout, one.stderr
    assert "1 of 1" in one.stdout
    kept = json.loads(file.read_text())
    assert (kept["name"], kept["kernels"]) == ("shape f4 M16 N16 K128", 1)
    kept["kernels"] = 5
    file.write_text(json.dumps(kept) + "\n")
    words = ("--filter", "^shape f4 M16 N16 K128$", "--compare", file)
    assert "kernels 5 -> 1 better" in start(GPU / "matrix.py", *words).stdout
    nothing = start(GPU / "matrix.py", "--filter", "no such case")
    assert nothing.returncode == 1
    assert "no case has such a name" in nothing.stderr


LOOP = "\tv_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]\n\ts_nop 2\n"
ASSEMBLY = f"""\t.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
\t.type\tk,@function
k:
.LBB0_1:
{LOOP}\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
.Lfunc_end0:
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 256
    .name:           k
    .private_segment_fixed_size: 0
    .sgpr_count:     6
    .sgpr_spill_count: 0
    .vgpr_count:     20
    .vgpr_spill_count: 0
...
\t.end_amdgpu_metadata
"""


def mca_that_says(folder: Path, version: int, cycles: str) -> str:
    """A command that answers as llvm-mca does: `cycles` is a shell expression of $iterations."""
    file = folder / f"llvm-mca-{version}"
    file.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "LLVM version {version}.1.0"; exit; fi
for word; do case $word in -iterations=*) iterations=${{word#*=}};; esac; done
echo "Total Cycles:      $(({cycles}))"
"""
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_llvm_mca_is_taken_cold_and_steady(tmp_path: Path) -> None:
    command = mca_that_says(tmp_path, 22, "100 + iterations * 10")
    assert mca.find(command) == command
    loop = [LoopInstruction("v_mfma_f32_16x16x16_bf16"), LoopInstruction("s_nop", "2")]
    # 4 cycles of work an iteration; 300 cycles for 20 iterations, 200 more for the next 20.
    assert mca.share(command, loop, "gfx950") == mca.Share(4 / 15, 4 / 10)
    assert mca.share(command, [LoopInstruction("s_nop", "2")], "gfx950") is None


def test_an_old_llvm_mca_is_refused_and_none_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="wanted llvm-mca 20 or later, found 14"):
        mca.find(mca_that_says(tmp_path, 14, "1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mca.find(None) is None
    newer = mca_that_says(tmp_path, 21, "1")
    assert mca.find(None) == newer


def test_loops_are_measured_from_assembly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert GFX950.gpu is not None
    (found,) = loops.measure(ASSEMBLY, GFX950.gpu, mca_that_says(tmp_path, 22, "iterations * 5"))
    assert found["census"] == {"matrix": 1, "nop": 1, "branch": 1}
    assert found["shares"] == [1.0] * len(loops.SETTINGS)
    assert found["mca"] == [0.8, 0.8]
    loops.show([found])
    shown = capsys.readouterr().out
    assert "k: 20 VGPR (4 AGPR), 0 B of LDS, 256 work-items, 8 waves a SIMD" in shown
    assert "0.800" in shown
