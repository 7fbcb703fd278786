"""Faults of the compiler and its bindings that mxc steers around."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

Compile = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = Path(__file__).parent


def _python(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program apart from pytest: some of the faults end the process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_f6_cannot_be_loaded_on_llvm_cpu(iree_compile: Compile, tmp_path: Path) -> None:
    source = HERE / "f6_load.mlir"
    output = tmp_path / "out.vmfb"
    control = tmp_path / "f8.mlir"
    control.write_text(source.read_text().replace("24xi8", "32xi8").replace("f6E2M3FN", "f8E4M3FN"))
    assert iree_compile(control, output).returncode == 0, "the same program compiles for f8"

    result = iree_compile(source, output)
    assert result.returncode != 0, (
        "IREE fixed f6 on llvm-cpu: f6 elements need no longer be unpacked with integer operations"
    )
    assert "failed to legalize operation 'vector.load'" in result.stderr


def test_unknown_cpu_name_kills_the_process() -> None:
    program = """
        from iree.compiler.api import Session, Source
        session = Session()
        session.set_flags(
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
            "--iree-llvmcpu-target-cpu=CPU",
        )
        invocation = session.invocation()
        text = b"func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {"
        text += b" %b = arith.addf %a, %a : tensor<4xf32> return %b : tensor<4xf32> }"
        assert invocation.parse_source(Source.wrap_buffer(session, text + bytes(1)))
        try:
            invocation.execute()
        finally:
            print("the process lives")
    """
    known = _python(program.replace("=CPU", "=haswell"))
    assert "the process lives" in known.stdout, known.stderr

    unknown = _python(program.replace("=CPU", "=no-such-cpu"))
    assert "the process lives" not in unknown.stdout, (
        "IREE fixed the exit on an unknown CPU name: fewer reasons for the compiler's own process"
    )
    assert "LLVM ERROR" in unknown.stderr


def test_session_context_takes_operations_of_dialects_that_are_not_loaded() -> None:
    program = """
        from iree.compiler import ir
        from iree.compiler.api import Session
        context = Session().context
        LOAD
        with context, ir.Location.unknown():
            # Without operands and results this operation is malformed.
            operation = ir.Operation.create("amdgpu.scaled_mfma")
            try:
                print("verified", operation.verify())
            except ir.MLIRError:
                print("refused")
    """
    loaded = _python(program.replace("LOAD", "context.load_all_available_dialects()"))
    assert "refused" in loaded.stdout, loaded.stderr

    lazy = _python(program.replace("LOAD", ""))
    assert lazy.stdout.strip() == "verified True", (
        "IREE fixed unregistered operations in a session's context: "
        "context.prepare need no longer load all dialects"
    )


def test_a_pass_bound_to_an_operation_name_kills_the_process() -> None:
    program = """
        from iree.compiler import ir, passmanager
        with ir.Context():
            module = ir.Module.parse("func.func private @f()")
            manager = passmanager.PassManager("builtin.module")
            manager.add(lambda operation, pass_: None, name="p", argument="p"NAME)
            manager.run(module.operation)
            print("the process lives")
    """
    free = _python(program.replace("NAME", ""))
    assert "the process lives" in free.stdout, free.stderr

    bound = _python(program.replace("NAME", ', op_name="func.func"'))
    assert bound.returncode < 0, (
        "IREE fixed op_name of Python passes: a pass may be bound to the operation it rewrites"
    )


def test_a_result_that_outlives_its_device_kills_the_process(
    iree_compile: Compile, tmp_path: Path
) -> None:
    source = tmp_path / "double.mlir"
    source.write_text(
        "func.func @f(%a: tensor<4096xf32>) -> tensor<4096xf32> {"
        " %b = arith.addf %a, %a : tensor<4096xf32> return %b : tensor<4096xf32> }"
    )
    output = tmp_path / "double.vmfb"
    assert iree_compile(source, output).returncode == 0
    program = f"""
        import gc, iree.runtime as rt, numpy as np
        from iree.runtime import _binding
        driver = _binding.create_hal_driver("local-task")
        device = driver.create_default_device()
        kept = KEPT
        instance = rt.VmInstance()
        double = rt.VmModule.mmap(instance, {str(output)!r})
        modules = [rt.create_hal_module(instance, device), double]
        context = rt.VmContext(instance, modules)
        arguments, results = rt.VmVariantList(1), rt.VmVariantList(1)
        arguments.push_ref(
            device.allocator.allocate_buffer_copy(
                memory_type=rt.MemoryType.DEVICE_LOCAL,
                allowed_usage=rt.BufferUsage.DEFAULT,
                device=device,
                buffer=np.ones(4096, np.float32),
                element_type=rt.HalElementType.FLOAT_32,
            )
        )
        context.invoke(double.lookup_function("f"), arguments, results)
        result = results.get_as_object(0, rt.HalBufferView)
        del arguments, results, context, modules, double, instance, driver, device
        gc.collect()
        del result
        gc.collect()
        print("the process lives")
    """
    kept = _python(program.replace("KEPT", "device"))
    assert "the process lives" in kept.stdout, kept.stderr

    dropped = _python(program.replace("KEPT", "None"))
    assert dropped.returncode < 0, (
        "IREE fixed results that outlive their device: an open device may be closed again"
    )


def test_one_packed_slice_cannot_be_gathered(iree_compile: Compile, tmp_path: Path) -> None:
    source = HERE / "lone_gather.mlir"
    output = tmp_path / "out.vmfb"
    control = tmp_path / "two.mlir"
    control.write_text(source.read_text().replace("tensor<1x", "tensor<2x"))
    assert iree_compile(control, output).returncode == 0, "two slices are the cure"

    result = iree_compile(source, output)
    assert result.returncode != 0, (
        "IREE fixed the gather of one packed slice: the experts of a model that chooses one "
        "expert a token need no longer be computed twice (compiler/models/blocks/experts.py)"
    )
    assert "tensor.collapse_shape" in result.stderr


def test_a_product_of_few_rows_kills_the_compiler(iree_compile: Compile, tmp_path: Path) -> None:
    source = HERE / "few_rows.mlir"
    output = tmp_path / "out.vmfb"
    target = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950")
    control = tmp_path / "another_depth.mlir"
    control.write_text(source.read_text().replace("128xbf16", "96xbf16"))
    assert iree_compile(control, output, target=target).returncode == 0, "a depth of 96 compiles"

    result = iree_compile(source, output, target=target)
    assert result.returncode != 0, (
        "IREE fixed its choice of a schedule for two to eight rows: they need none of ours "
        "(passes/rewriting/few_rows.py)"
    )
    assert "getXorShuffleParamsForTunedChipset" in result.stderr
