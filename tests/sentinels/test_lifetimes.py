"""Faults of the runtime's bindings about who keeps what alive, that mxc.runtime works around."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from iree import runtime as rt

Compile = Callable[..., "subprocess.CompletedProcess[str]"]

# The first writes one element into its argument, in place; the second makes a buffer of its own.
PROGRAM = """
func.func @touch(%a: tensor<16xf32>, %i: i32) -> tensor<16xf32> {
  %p = arith.index_cast %i : i32 to index
  %x = arith.constant 7.0 : f32
  %0 = tensor.insert %x into %a[%p] : tensor<16xf32>
  return %0 : tensor<16xf32>
}
func.func @halves(%a: tensor<16xf32>, %i: i32) -> tensor<8xf32> {
  %0 = tensor.extract_slice %a[0] [8] [1] : tensor<16xf32> to tensor<8xf32>
  %1 = tensor.extract_slice %a[8] [8] [1] : tensor<16xf32> to tensor<8xf32>
  %2 = arith.addf %0, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}
"""

CALL = """
import gc, sys, weakref
import numpy as np
from iree import runtime as rt
from iree.runtime import _binding
driver = _binding.create_hal_driver("local-task")
device = driver.create_device_by_uri("local-task")
instance = rt.VmInstance()
module = rt.VmModule.mmap(instance, sys.argv[1])
context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])

def call(name, view):
    arguments, results = rt.VmVariantList(2), rt.VmVariantList(1)
    arguments.push_ref(view)
    arguments.push_int(3)
    context.invoke(module.lookup_function(name), arguments, results)
    return results.get_as_object(0, rt.HalBufferView)
"""


@pytest.fixture(scope="module")
def touch(iree_compile: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("touch")
    (folder / "touch.mlir").write_text(PROGRAM)
    compiled = iree_compile(folder / "touch.mlir", folder / "touch.vmfb")
    assert compiled.returncode == 0, compiled.stderr
    return folder / "touch.vmfb"


def python(program: str, module: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CALL + program, str(module)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_result_that_outlives_its_device_crashes(touch: Path) -> None:
    program = """
result = call("halves", device.allocator.allocate_buffer_copy(
    rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, device,
    np.zeros(16, np.float32), rt.HalElementType.FLOAT_32))
ORDER
print("end", flush=True)
"""
    last = "del result; gc.collect(); del context, module, device, driver; gc.collect()"
    assert python(program.replace("ORDER", last), touch).returncode == 0
    first = "del context, module, device, driver; gc.collect(); del result; gc.collect()"
    result = python(program.replace("ORDER", first), touch)
    assert result.returncode < 0, (
        "IREE keeps a device as long as its buffers: mxc.runtime.device need not keep devices "
        "for the life of the process"
    )


def test_imported_memory_dies_with_the_first_buffer_object(touch: Path) -> None:
    program = """
memory = np.zeros(1024, np.uint8)
start = -memory.ctypes.data % 64
window = memory[start : start + 64]
buffer = device.allocator.import_host_allocation(
    window, int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
    int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING))
view = rt.HalBufferView(buffer, [16], rt.HalElementType.FLOAT_32)
result = call("touch", view)
print(window.view(np.float32)[3])
alive = weakref.ref(window)
del window; gc.collect()
print(alive() is not None)
del buffer, view; gc.collect()
print(alive() is not None)
del result; gc.collect()
"""
    outcome = python(program, touch)
    assert outcome.returncode == 0, outcome.stderr
    in_place, with_buffer, with_result = outcome.stdout.split()
    assert in_place == "7.0", "the result is the imported memory"
    assert with_buffer == "True", "the buffer's object keeps the memory"
    assert with_result == "False", (
        "IREE keeps imported memory as long as any buffer uses it: mxc.runtime.arrays.zeros need "
        "not return it"
    )


def test_drivers_of_ones_own_are_not_public() -> None:
    """The public get_driver caches one for all, with the number of workers of its first use."""
    assert rt.get_driver("local-task") is rt.get_driver("local-task")
    assert not hasattr(rt, "create_hal_driver"), (
        "IREE exports create_hal_driver: mxc.runtime.device need not take it from _binding"
    )
