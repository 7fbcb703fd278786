"""Code objects of GPU kernels that a test puts into a program, made as those of a model are.

IREE sees the bodies of the kernels in its last phases alone, and LLVM generates their code once,
with its assembly in it (compiler/kernel_code.py). `iree-compile` takes four times as long: its
other phases visit and verify the bodies, and it generates code again for the assembly.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from mxc.artifact.child import Channel
from mxc.artifact.code_objects.listing import read_listings
from mxc.artifact.code_objects.metadata import Resources, read_resources
from mxc.compiler import iree
from mxc.compiler.kernel_bodies import KernelBodies
from mxc.compiler.kernel_code import KernelObjects
from mxc.errors import MxcError
from mxc.simulator.code.code_object import CodeObjectKernel, read_kernels
from mxc.targets.target import target
from tests import kept_code
from tests.forked_child import ForkedChild

#: Phases of IREE: the last one without bodies, the first one with finished kernels, and the first
#: one after the code of kernels.
_STREAM, _CONFIGURATIONS, _HAL = "stream", "executable-configurations", "hal"


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel for the simulator; the assembly of its instructions, and its registers and LDS."""

    kernel: CodeObjectKernel
    assembly: str
    resources: Resources


def compile_kernels(program: str, gpu: str) -> dict[str, CompiledKernel]:
    """The kernels of a program by name; each executable has one.

    Raises CompileError where IREE refuses the program.
    """
    child = ForkedChild("tests.kernel_objects:serve", gpu)
    child.send(program.encode())
    found = pickle.loads(child.receive())
    if isinstance(found, MxcError):
        raise found
    return {name: _read(name, code) for name, code in found.items()}


def _read(name: str, code: bytes) -> CompiledKernel:
    return CompiledKernel(
        read_kernels(code)[name], read_listings(code)[name], read_resources(code)[name]
    )


def serve(channel: Channel, gpu: str) -> None:
    """Main function of the process that compiles."""
    try:
        answer: object = _objects(channel.receive(), gpu)
    except MxcError as error:
        answer = error
    channel.send(pickle.dumps(answer))


def _objects(program: bytes, gpu: str) -> dict[str, bytes]:
    record = target(gpu)
    iree.set_up_process(record)
    compiler = iree.Compiler(record, program)
    kernels, bodies = KernelObjects(compiler, record, kept_code.kernels()), KernelBodies()
    bodies.take(compiler.module.operation)
    for phase in iree.PHASES[: iree.PHASES.index(_HAL)]:
        if phase == _CONFIGURATIONS:
            kernels.take_known()
        compiler.run_to(phase)
        if phase == _STREAM:
            bodies.put_back(compiler.module.operation)
    kernels.generate()
    return kernels.objects
