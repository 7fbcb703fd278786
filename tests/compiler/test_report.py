"""The report of small programs that IREE compiles here; bytes are worked out by hand."""

import dataclasses
import json
from pathlib import Path

import pytest
from iree.compiler import ir, tools
from iree.compiler.dialects import func

from mxc.artifact.code_objects.metadata import read_resources
from mxc.compiler.report import Matmul, Report, build_report, require_no_fallback
from mxc.compiler.report.assembly import KernelCode, parse_all
from mxc.compiler.report.lowering import NO_REASON, lowering_of
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.contractions import contractions
from mxc.dialects.dispatches import dispatches
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import scaled_contraction
from mxc.errors import CompileError
from mxc.targets.amd import GFX950
from mxc.targets.target import target

#: How the fallback of a contraction begins that IREE's code generator has.
FELL_BACK = "no kernel of mxc computes it: "
N, K = 256, 512
WEIGHT, SCALES = N * K // 2, N * K // 32

TEXT = Path(__file__).with_name("report_programs.mlir").read_text()


def _tensor(element: ir.Type, *shape: int) -> ir.Type:
    return ir.RankedTensorType.get(shape, element)


def _program() -> str:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        i8, i32 = (ir.IntegerType.get_signless(bits) for bits in (8, 32))
        f32, f4 = ir.F32Type.get(), ir.Float4E2M1FNType.get()
        e8m0 = ir.Float8E8M0FNUType.get()

        def weight(name: str, *experts: int) -> tuple[ir.Value, ir.Value]:
            return (
                unpack(parameters.load(name, [*experts, N, K // 32, 16], i8), f4),
                unpack(parameters.load(f"{name}.s", [*experts, N, K // 32], i8), e8m0),
            )

        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(
                _tensor(i8, 128, K // 32, 16), _tensor(i8, 128, K // 32), name="pair"
            )
            def pair(x: ir.Value, scales: ir.Value) -> list[ir.Value]:
                x, scales = unpack(x, f4), unpack(scales, e8m0)
                results = []
                for layer in range(2):
                    w, s = weight(f"w{layer}")
                    results.append(
                        scaled_contraction(
                            x, w, lhs_scale=scales, rhs_scale=s, name=f"layers.{layer}.up"
                        )
                    )
                return results

            @func.FuncOp.from_py_func(_tensor(f32, 1, K // 32, 32), name="decode")
            def decode(x: ir.Value) -> ir.Value:
                w, s = weight("w0")
                return scaled_contraction(x, w, rhs_scale=s, name="layers.0.down")

            rows, index = _tensor(f32, 4, 1, K // 32, 32), _tensor(i32, 4)

            @func.FuncOp.from_py_func(rows, index, name="fused")
            def fused(x: ir.Value, chosen: ir.Value) -> ir.Value:
                w, s = (gather(each, chosen) for each in weight("e", 32))
                return scaled_contraction(x, w, rhs_scale=s, batch=1, name="experts.up")

            @func.FuncOp.from_py_func(
                _tensor(f32, 40, 1, K // 32, 32), _tensor(i32, 40), name="many"
            )
            def many(x: ir.Value, chosen: ir.Value) -> ir.Value:
                w, s = (gather(each, chosen) for each in weight("e", 32))
                return scaled_contraction(x, w, rhs_scale=s, batch=1, name="experts.all")

            @func.FuncOp.from_py_func(rows, index, name="gathered")
            def gathered(x: ir.Value, chosen: ir.Value) -> ir.Value:
                # Renaming the bytes after the gather keeps it out of the contraction's dispatch.
                w = unpack(gather(parameters.load("e", [32, N, K // 32, 16], i8), chosen), f4)
                s = unpack(gather(parameters.load("e.s", [32, N, K // 32], i8), chosen), e8m0)
                return scaled_contraction(x, w, rhs_scale=s, batch=1, name="experts.up")

        text = module.operation.get_asm(enable_debug_info=True)
    return text[: text.rindex("}")] + TEXT + "}\n"


Compiled = tuple[str, str, list[str], list[bytes]]


def _compile(folder: Path, text: str, flags: list[str]) -> Compiled:
    tools.compile_str(
        text,
        output_file=str(folder / "o.vmfb"),
        extra_args=[
            *flags,
            "--mlir-print-debuginfo",
            f"--dump-compilation-phases-to={folder}/phases",
            f"--iree-hal-dump-executable-files-to={folder}/code",
        ],
    )
    flow, stream = (next((folder / "phases").glob(f"*.{p}.mlir")) for p in ("flow", "stream"))
    code = [f.read_text() for f in (folder / "code").iterdir() if f.suffix in (".s", ".rocmasm")]
    objects = [file.read_bytes() for file in (folder / "code").glob("*.hsaco")]
    return flow.read_text(), stream.read_text(), code, objects


def _kernels(code: list[str], objects: list[bytes]) -> dict[str, KernelCode]:
    taken = {name: each for data in objects for name, each in read_resources(data).items()}
    return parse_all(code, target("gfx950").gpu.unit, taken)


def _report(compiled: Compiled, name: str) -> Report:
    flow, stream, code, objects = compiled
    with new_context():
        before, after = (ir.Module.parse(text).operation for text in (flow, stream))
        return build_report(before, after, _kernels(code, objects), target(name))


@pytest.fixture(scope="module")
def gpu_program(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    flags = ["--iree-hal-target-device=hip", "--iree-rocm-target=gfx950"]
    return _compile(tmp_path_factory.mktemp("gfx950"), _program(), flags)


@pytest.fixture(scope="module")
def gpu(gpu_program: Compiled) -> Report:
    return _report(gpu_program, "gfx950")


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Report:
    record = target("cpu:x86-64-v4")
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={record.chip}",
        f"--iree-llvmcpu-target-triple={record.triple}",
    ]
    return _report(_compile(tmp_path_factory.mktemp("cpu"), _program(), flags), record.name)


def _one(report: Report, function: str) -> Matmul:
    (found,) = [matmul for matmul in report.matmuls if matmul.function == function]
    return found


def _sizes(one: Matmul) -> tuple[int, ...]:
    return (one.batch, one.m, one.n, one.k)


def test_equal_layers_share_a_kernel_and_keep_their_names(gpu: Report) -> None:
    found = [matmul for matmul in gpu.matmuls if matmul.function == "pair"]
    assert [matmul.name for matmul in found] == ["layers.0.up", "layers.1.up"]
    assert len({matmul.kernel for matmul in found}) == 1
    packed = 128 * K // 2 + 128 * K // 32 + WEIGHT + SCALES + 4 * 128 * N
    for matmul in found:
        assert _sizes(matmul) == (1, 128, N, K)
        assert (matmul.lhs, matmul.rhs, matmul.out) == ("mxfp4", "mxfp4", "f32")
        assert matmul.lowering == "v_mfma_scale_f32_16x16x128_f8f6f4"
        assert (matmul.kernels, matmul.fallback) == (1, f"{FELL_BACK}{NO_REASON}")
        assert (matmul.bytes_moved, matmul.bytes_minimum) == (packed, packed)
    (kernel,) = [k for k in gpu.kernels if k.name == found[0].kernel]
    assert kernel.instructions["v_mfma_scale_f32_16x16x128_f8f6f4"] >= 8
    assert (kernel.spills, kernel.scratch_bytes) == (0, 0)
    assert kernel.vgpr is not None
    assert 16 <= kernel.vgpr <= 512
    assert kernel.lds_bytes is not None
    assert 0 < kernel.lds_bytes <= GFX950.workgroup_lds_bytes


def test_a_weight_only_row_is_a_fallback_that_says_so(gpu: Report) -> None:
    one = _one(gpu, "decode")
    assert (one.name, one.lhs, one.rhs) == ("layers.0.down", "f32", "mxfp4")
    assert _sizes(one) == (1, 1, N, K)
    assert one.lowering.startswith("v_cvt_scalef32_pk_f32_fp4 + v_")
    assert one.kernels == 1
    assert one.bytes_moved == one.bytes_minimum == 4 * K + WEIGHT + SCALES + 4 * N
    assert one.fallback is not None
    assert "lhs is f32, a weight-only contraction" in one.fallback


def test_experts_that_are_copied_first_cost_three_kernels(gpu: Report) -> None:
    one = _one(gpu, "gathered")
    assert _sizes(one) == (4, 1, N, K)
    rows = 4 * (WEIGHT + SCALES)
    assert one.bytes_minimum == 4 * 4 * K + rows + 4 * 4 * N
    # Each gather reads the rows and an index, and writes the rows; only chosen rows count.
    assert one.bytes_moved == one.bytes_minimum + 2 * rows + 2 * 16
    assert one.kernels == 3
    assert one.fallback is not None
    assert "3 kernels where one is wanted" in one.fallback


def test_experts_that_are_gathered_in_the_kernel_count_the_rows_that_are_read(gpu: Report) -> None:
    one = _one(gpu, "fused")
    assert (one.name, one.kernels) == ("experts.up", 1)
    assert one.bytes_minimum is not None
    assert one.bytes_moved == one.bytes_minimum + 16
    assert one.fallback is not None
    assert "weight-only" in one.fallback


def test_more_groups_than_experts_read_each_expert_once(gpu: Report) -> None:
    one = _one(gpu, "many")
    assert _sizes(one) == (40, 1, N, K)
    assert one.bytes_minimum == 4 * 40 * K + 32 * (WEIGHT + SCALES) + 4 * 40 * N
    assert one.bytes_moved == one.bytes_minimum + 4 * 40


def test_a_sum_of_scaled_elements_that_is_not_understood_is_listed(gpu: Report) -> None:
    one = _one(gpu, "others")  # and the weighted sum of chosen rows is no contraction
    assert (one.name, one.lhs, one.rhs) == ("row.sums", "unknown", "unknown")
    assert one.fallback == (
        f"{FELL_BACK}a sum of scaled elements that is no contraction of two tensors"
    )
    assert _sizes(one) == (-1, -1, -1, -1)


def test_elements_with_a_float_for_each_are_listed_with_the_reason(gpu: Report) -> None:
    one = _one(gpu, "masked")
    assert (one.name, one.lhs, one.rhs) == ("masked", "unknown", "unknown")
    assert one.fallback == f"{FELL_BACK}a mask"


def test_plain_operands_that_were_packed_are_a_fallback(gpu: Report) -> None:
    one = _one(gpu, "unknown")
    assert (one.name, one.lhs, one.rhs) == ("unknown", "f32", "f32")
    assert one.fallback is not None
    assert one.fallback.startswith(f"{FELL_BACK}a table")


def test_a_weight_that_is_dequantized_to_memory_is_found_behind_a_hoisted_global(
    gpu: Report,
) -> None:
    one = _one(gpu, "materialised")
    assert (one.name, one.lhs, one.rhs, one.kernels) == ("wide", "f32", "mxfp4", 2)
    wide = 4 * N * K
    assert one.bytes_minimum == 4 * 16 * K + WEIGHT + SCALES + 4 * 16 * N
    assert one.bytes_moved == one.bytes_minimum + 2 * wide
    assert one.fallback is not None
    assert f"writes {wide} bytes that the contraction reads back" in one.fallback


def test_weights_that_are_written_or_prepared_are_findings(gpu: Report) -> None:
    gathered, wide, at_load = sorted(gpu.findings, key=lambda text: "initiali" in text)
    assert "in @gathered writes a copy of a weight, tensor<4x256x16x16xi8>" in gathered
    assert "in @initializer writes a dequantized weight" in wide
    assert "an initialiser runs stream.cmd.dispatch when the program loads" in at_load


def test_totals(gpu: Report) -> None:
    costs = {cost.name: cost for cost in gpu.functions}
    counts = {name: cost.dispatches for name, cost in costs.items()}
    assert counts == {
        "pair": 2, "decode": 1, "gathered": 3, "fused": 1, "many": 1, "materialised": 1,
        "others": 2, "masked": 1, "unknown": 1, "initializer": 1,
    }  # fmt: skip
    assert gpu.dispatches == 14
    copied = 4 * (WEIGHT + SCALES)
    assert costs["gathered"].transient_bytes == copied == gpu.transient_bytes
    assert costs["fused"].transient_bytes == 0


def test_on_a_cpu_packed_weights_in_a_stock_kernel_are_a_fallback(cpu: Report) -> None:
    for function in ("decode", "fused"):
        one = _one(cpu, function)
        assert (one.fallback, one.kernels) == (f"{FELL_BACK}{NO_REASON}", 1)
        assert one.rhs == "mxfp4"
        (kernel,) = [k for k in cpu.kernels if k.name == one.kernel]
        assert set(one.lowering.split(" + ")) <= set(kernel.instructions)
        assert "mm" in one.lowering  # the width of the vectors: xmm, ymm or zmm
    for function in ("gathered", "materialised"):
        assert _one(cpu, function).fallback is not None
    # The linked file holds helpers of the run time too; the report has the dispatches only.
    assert len(cpu.kernels) == len({kernel.name for kernel in cpu.kernels}) > 5
    assert all("_dispatch_" in kernel.name for kernel in cpu.kernels)


def test_strict_lists_each_reason_with_its_contractions(gpu: Report) -> None:
    with pytest.raises(CompileError) as caught:
        require_no_fallback(gpu)
    assert caught.value.phase == "report"
    assert "10 of 10 contractions fell back on gfx950" in str(caught.value)
    assert "decode:layers.0.down, fused:experts.up" in str(caught.value)
    require_no_fallback(dataclasses.replace(gpu, matmuls=(), kernels=()))


def test_strict_refuses_a_kernel_of_whatever_operation_that_spills(gpu: Report) -> None:
    spilled = dataclasses.replace(gpu.kernels[0], spills=3, scratch_bytes=64)
    report = dataclasses.replace(gpu, matmuls=(), kernels=(spilled,))
    assert report.spilling == (spilled,)
    with pytest.raises(CompileError, match=r"\(3 spills, 64 bytes of scratch\)"):
        require_no_fallback(report)
    on_cpu = dataclasses.replace(spilled, vgpr=None)
    require_no_fallback(dataclasses.replace(report, kernels=(on_cpu,)))


def test_json_has_the_promised_keys_and_reads_back(gpu: Report) -> None:
    raw = json.loads(gpu.to_json())
    assert Report.from_dict(raw) == gpu
    assert {"matmuls", "dispatches", "transient_bytes", "kernels"} <= set(raw)
    assert set(raw["matmuls"][0]) >= {
        "name", "function", "m", "n", "k", "lhs", "rhs", "out", "lowering", "kernels",
        "bytes_moved", "bytes_minimum", "fallback",
    }  # fmt: skip
    assert set(raw["kernels"][0]) >= {
        "name", "vgpr", "agpr", "sgpr", "spills", "scratch_bytes", "lds_bytes", "instructions",
    }  # fmt: skip


def test_kernels_take_what_their_code_objects_say(gpu: Report, gpu_program: Compiled) -> None:
    said = {name: each for data in gpu_program[3] for name, each in read_resources(data).items()}
    assert {kernel.name for kernel in gpu.kernels} == set(said)
    for kernel in gpu.kernels:
        assert (kernel.vgpr, kernel.agpr, kernel.sgpr, kernel.spills) == (
            said[kernel.name].vgpr,
            said[kernel.name].agpr,
            said[kernel.name].sgpr,
            said[kernel.name].spills,
        )
    # Nothing is taken from the texts, which are of copies of the kernels.
    assert not _report((*gpu_program[:3], []), "gfx950").kernels


def test_a_kernel_that_is_not_in_the_assembly_is_a_fallback(
    gpu_program: Compiled,
) -> None:
    report = _report((*gpu_program[:2], [], []), "gfx950")
    one = report.matmuls[0]
    assert one.lowering == "not found"
    missing = "the kernel was not found in the assembly, so nothing is known of it"
    assert one.fallback == f"{FELL_BACK}{NO_REASON}; {missing}"


def test_the_reason_that_a_pass_has_left_is_given(
    gpu_program: Compiled,
) -> None:
    flow, stream, code, objects = gpu_program
    with new_context():
        module = ir.Module.parse(flow).operation
        first = next(each for each in dispatches(module) if each.body is not None)
        (contraction,) = contractions(first.body)
        write_reason(contraction.op, Reason("K is not a multiple of 512"))
        after = ir.Module.parse(stream).operation
        report = build_report(module, after, _kernels(code, objects), target("gfx950"))
    reasons = [one.fallback for one in report.matmuls if one.kernel == first.entry]
    assert reasons == [f"{FELL_BACK}K is not a multiple of 512"] * len(reasons) != []


def test_decoders_are_named_for_packed_operands_only() -> None:
    body = "f:\n\tvpermps\t%zmm0, %zmm1, %zmm2\n\tvfmadd231ps\t%zmm0, %zmm1, %zmm2\n"
    text = "\t.type\tf,@function\n" + body
    kernel = parse_all([text])["f"]
    cpu = target("cpu:znver5")
    assert lowering_of(kernel, cpu, packed=True) == "vpermps zmm + vfmadd231ps zmm"
    assert lowering_of(kernel, cpu, packed=False) == "vfmadd231ps zmm"
    assert lowering_of(dataclasses.replace(kernel, instructions={"retq": 1}), cpu, packed=True) == (
        "no multiplication"
    )
