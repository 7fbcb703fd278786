"""Targets against what the pinned compiler says of them."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from iree.compiler.dialects import iree_gpu, rocdl

from mxc.errors import TargetError
from mxc.targets.amd import GFX950, GPUS
from mxc.targets.cpus import CPUS, KERNEL_FEATURES
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, scaled
from mxc.targets.target import TARGETS, Multiplier, target

# The compiler says what a target is once it has resolved the device, a phase that costs 40 ms.
ASK = """
import ctypes, json, sys
from iree.compiler import ir
from iree.compiler.api import Session, ctypes_dl
to_phase = ctypes_dl._dylib.ireeCompilerInvocationSetCompileToPhase
to_phase.argtypes, to_phase.restype = [ctypes.c_void_p, ctypes.c_char_p], None
for flags in json.loads(sys.argv[1]):
    session = Session()
    session.set_flags(*flags)
    with session.context, ir.Location.unknown():
        module = ir.Module.parse(
            "func.func @f(%a: tensor<16xf32>) -> tensor<16xf32> { return %a : tensor<16xf32> }"
        )
        invocation = session.invocation()
        to_phase(invocation._inv_p, b"global-optimization")
        invocation.import_module(module.operation)
        assert invocation.execute()
        text = module.operation.get_asm(use_local_scope=True)
        device = next(line for line in text.splitlines() if "#hal.device.target<" in line)
        print(json.dumps(device), flush=True)
"""


def _ask(flags: list[list[str]]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(flags)], capture_output=True, text=True, check=False
    )


def _cpu_flags(name: str) -> list[str]:
    record = target(name)
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={record.chip}",
    ]
    if record.triple is not None:
        flags.append(f"--iree-llvmcpu-target-triple={record.triple}")
    return flags


def test_every_cpu_name_is_known_to_the_pinned_compiler_with_the_features_of_its_record() -> None:
    names = [name for name in TARGETS if name.startswith("cpu:")]
    answer = _ask([_cpu_flags(name) for name in names])
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""  # an unknown name is only a warning for aarch64
    lines = answer.stdout.splitlines()
    assert len(lines) == len(names) > 40
    for name, line in zip(names, map(json.loads, lines), strict=True):
        record = target(name)
        found = re.search(r'cpu = "([^"]+)", cpu_features = "([^"]*)"', line)
        assert found is not None, line
        has = {feature[1:] for feature in found[2].split(",") if feature.startswith("+")}
        wanted = [f for f in KERNEL_FEATURES[record.architecture] if f in has]
        assert (record.chip, list(record.features)) == (found[1], wanted), name
        assert f'target_triple = "{record.architecture}-' in line


def test_the_host_is_resolved_from_what_the_compiler_says() -> None:
    answer = _ask([_cpu_flags("cpu")])
    found = re.search(r'cpu = "([^"]+)", cpu_features = "([^"]*)"', json.loads(answer.stdout))
    assert found is not None
    features = tuple(f[1:] for f in found[2].split(",") if f.startswith("+"))
    host = target("cpu").resolved(found[1], features)
    assert (host.name, host.chip, host.device) == ("cpu", found[1], "local-task")
    assert set(host.features) == set(features) & set(KERNEL_FEATURES[host.architecture])
    known = TARGETS.get(f"cpu:{found[1]}")
    assert known is None or set(known.features) <= set(host.features)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_gpu_numbers_are_the_compilers(gpu: Gpu) -> None:
    record = target(gpu.name)
    assert record.gpu is gpu
    answer = _ask([["--iree-hal-target-device=hip", f"--iree-rocm-target={record.chip}"]])
    line = json.loads(answer.stdout)
    sizes = re.search(r"subgroup_size_choices = \[([\d, ]+)\]", line)
    assert sizes is not None
    assert gpu.unit.wave in map(int, sizes[1].split(","))
    assert f"max_workgroup_memory_bytes = {gpu.workgroup_lds_bytes}," in line
    # IREE knows only pairs of one type and no WMMA, so it can confirm but not complete ours.
    for m, n, k, block in re.findall(r"MFMA_SCALE_F32_(\d+)x(\d+)x(\d+)_B(\d+)", line):
        shape = (int(m), int(n), int(k), int(block))
        assert shape in [(*s.shape, s.block) for s in record.scaled_instructions]
    plain = {"MFMA": "v_mfma_", "WMMA": "v_wmma_", "WMMAR": "v_wmma_"}
    kinds = set(re.findall(r"<([A-Z]+)\d?_[A-Z]\w*_\d+x\d+", line))
    assert kinds
    for kind in kinds:
        found = record.multiplier(plain[kind.removesuffix("_SCALE")] + "f32_16x16x32_f16")
        assert found is not None
        assert found.kind == "matrix"


def test_every_scaled_instruction_is_an_operation_of_rocdl() -> None:
    shapes = [each.mnemonic for gpu in GPUS for each in gpu.matrix.scaled]
    assert len(shapes) == 6
    for instruction in shapes:
        assert hasattr(rocdl, instruction.removeprefix("v_")), instruction
    assert {value.name for value in iree_gpu.ScaledMMAIntrinsic} == {
        "MFMA_SCALE_F32_16x16x128_B32",
        "MFMA_SCALE_F32_32x32x64_B32",
    }


def test_the_record_answers_what_is_native() -> None:
    gfx950 = target("gfx950")
    assert [s.k for s in gfx950.scaled_for("f4E2M1FN", "f8E5M2", 32)] == [128, 64]
    assert gfx950.scaled_for("f4E2M1FN", "f4E2M1FN", 16) == ()
    assert gfx950.scaled_for("f32", "f4E2M1FN", 32) == ()
    assert len(target("gfx1250").scaled_for("f4E2M1FN", "f4E2M1FN", 16)) == 2
    assert target("gfx942").scaled_instructions == ()
    kinds = {
        "v_mfma_scale_f32_16x16x128_f8f6f4": "scaled matrix",
        "v_mfma_f32_16x16x16_f16": "matrix",
        "v_dot4_i32_i8": "dot product",
        "v_fmac_f32_e32": "multiply-add",
    }
    for mnemonic, kind in kinds.items():
        found = gfx950.multiplier(mnemonic)
        assert found is not None
        assert found.kind == kind
    assert gfx950.multiplier("v_add_f32_e32") is None
    assert target("gfx942").multiplier("v_mfma_scale_f32_16x16x128_f8f6f4").kind == "matrix"


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        TargetError, match=r"unknown target 'gfx95' \(did you mean 'gfx950'\?\)"
    ) as e:
        target("gfx95")
    for name in TARGETS:
        assert name in str(e.value)
    with pytest.raises(TargetError, match=r"did you mean 'cpu:znver4'"):
        target("znver4")
    with pytest.raises(TargetError, match=r"unknown target 'toaster'; known targets: cpu, gfx950"):
        target("toaster")


def test_llvm_ends_the_process_for_an_unknown_name_which_is_why_the_table_is_the_gate() -> None:
    flags = _cpu_flags("cpu:x86-64")
    answer = _ask([[flag.replace("=x86-64", "=nosuch") for flag in flags]])
    assert answer.returncode != 0
    assert "LLVM ERROR" in answer.stderr


def test_records_refuse_to_contradict_themselves() -> None:
    good = target("gfx950")
    with pytest.raises(ValueError, match="number of blocks"):
        scaled("v_mfma_scale_f32_16x16x100_f8f6f4")
    with pytest.raises(ValueError, match="has no shape"):
        MatrixInstruction("v_mfma_f32_bf16")
    with pytest.raises(ValueError, match="unknown element type"):
        dataclasses.replace(good.scaled_instructions[0], lhs=("f32",))
    with pytest.raises(ValueError, match="record of a GPU disagree"):
        dataclasses.replace(good, gpu=None)
    with pytest.raises(ValueError, match="waves of 32 or 64"):
        dataclasses.replace(GFX950, unit=dataclasses.replace(GFX950.unit, wave=32))
    with pytest.raises(ValueError, match="more LDS than its compute unit"):
        dataclasses.replace(GFX950, workgroup_lds_bytes=1 << 20)
    with pytest.raises(ValueError, match="not positive"):
        dataclasses.replace(GFX950, memory_bandwidth=0.0)
    with pytest.raises(ValueError, match="best first"):
        dataclasses.replace(good, multipliers=good.multipliers[::-1])
    with pytest.raises(ValueError, match="no multiplier stands for"):
        dataclasses.replace(good, multipliers=(Multiplier(prefix="v_fma", kind="multiply-add"),))
    with pytest.raises(ValueError, match="fill a wave"):
        dataclasses.replace(GFX950.matrix, instructions=(scaled("v_mfma_scale_f32_4x4x64_f4"),))
    with pytest.raises(ValueError, match="no kernel looks at"):
        dataclasses.replace(target("cpu:haswell"), features=("tbm",))
    assert {chip for cpus in CPUS.values() for chip in cpus} == {
        record.chip for name, record in TARGETS.items() if name.startswith("cpu:")
    }
