"""Vectors on the stack in hot loops of CPU kernels: what counts, and what `--strict` refuses."""

import dataclasses

import pytest

from mxc.compiler.report import Matmul, Report, require_no_fallback
from mxc.compiler.report.assembly import KernelCode, parse
from mxc.compiler.report.loops import innermost_loops
from mxc.compiler.report.stack_slots import StackMoves, stack_moves
from mxc.errors import CompileError

#: Before, in and after the inner of two loops; in it 3 of 12 instructions move spilled vectors.
X86 = """
	.type	kernel,@function
kernel:
	subq	$768, %rsp
	vmovups	%zmm9, 640(%rsp)                # before the loops
.LBB0_1:
	vmovups	%zmm8, 576(%rsp)                # of the outer loop
.LBB0_2:
	vmovups	%zmm1, 64(%rsp)
	vaddps	-128(%rbp), %zmm1, %zmm2
	vfmadd231ps	(%rsp), %ymm1, %ymm2
	vmovups	%zmm2, 64(%rsp,%rax,4)          # an array at an index
	vmovups	%zmm2, 64(%rax)                 # not on the stack
	vfmadd231ps	28(%rsp){1to16}, %zmm1, %zmm2
	vbroadcastss	12(%rsp), %zmm0
	vmovss	12(%rsp), %xmm0
	movq	%rax, 32(%rsp)
	{vex}	vpdpbusd	%ymm1, %ymm2, %ymm3
	incq	%rax
	jne	.LBB0_2
	jmp	.LBB0_1
	vmovups	640(%rsp), %zmm9
	retq
.Lfunc_end0:
	.size	kernel, .Lfunc_end0-kernel
"""

PRODUCT = Matmul(
    name="up",
    function="f",
    batch=1,
    m=8,
    n=64,
    k=128,
    lhs="bf16",
    rhs="mxfp4",
    out="f32",
    kernel="kernel",
    lowering="vfmadd231ps zmm",
    kernels=1,
    bytes_moved=None,
    bytes_minimum=None,
    fallback=None,
)

#: 3 of 8 instructions; the pointer of the last store is no slot.
AARCH64 = """
	.type	kernel,@function
kernel:
	stp	d9, d8, [sp, #-64]!
.LBB0_1:
	str	q0, [sp, #32]
	ldp	q1, q2, [x29, #-64]
	ldr	q3, [sp]
	fmla	v0.4s, v1.4s, v2.4s
	ldr	q4, [x9, #16]
	str	q0, [sp, x8]
	str	x8, [sp, #8]
	cbnz	x8, .LBB0_1
	ret
.Lfunc_end0:
	.size	kernel, .Lfunc_end0-kernel
"""


@pytest.mark.parametrize(("text", "moves", "instructions"), [(X86, 3, 12), (AARCH64, 3, 8)])
def test_vectors_at_fixed_places_of_the_stack(text: str, moves: int, instructions: int) -> None:
    (kernel,) = parse(text)
    assert [len(loop) for loop in innermost_loops(text)] == [instructions]
    assert kernel.stack_moves == StackMoves(moves=moves, instructions=instructions)
    assert kernel.uses_scratch
    assert kernel.spilling == (
        f"{moves} of {instructions} instructions of a loop move vectors to or from the stack"
    )


def test_what_is_no_loop_moves_nothing() -> None:
    straight = X86.replace("jne\t.LBB0_2", "nop").replace("jmp\t.LBB0_1", "nop")
    assert stack_moves(straight) is None
    (kernel,) = parse(straight)
    assert (kernel.spills, kernel.uses_scratch) == (3, False)


def test_a_few_beside_many_products_are_no_finding() -> None:
    """The worst loop counts: by its share, not by its number."""
    products = "\tvdpbf16ps\t%zmm1, %zmm2, %zmm3\n"
    many = X86.replace("\tincq", products * 3 + "\tincq")
    (kernel,) = parse(many)
    assert kernel.stack_moves == StackMoves(moves=3, instructions=15)
    assert not kernel.uses_scratch
    (kernel,) = parse(X86.replace("\tincq", products * 2 + "\tincq"))
    assert kernel.uses_scratch
    other = ".LBB1_1:\n" + "\tvmovups\t%zmm1, (%rsp)\n" * 4 + products * 30 + "\tjb\t.LBB1_1\n"
    assert stack_moves(many + other) == StackMoves(moves=3, instructions=15)


def test_strict_refuses_what_moves_too_many() -> None:
    (kernel,) = parse(X86)
    other = dataclasses.replace(kernel, name="elementwise")
    report = Report(
        target="cpu:x86-64-v4", matmuls=(PRODUCT,), kernels=(kernel, other), functions=()
    )
    assert report.spilling == (kernel,)  # the other multiplies nothing
    with pytest.raises(
        CompileError,
        match=r"1 of 2 kernels keep registers in memory, which --strict refuses: kernel \(3 of 12",
    ):
        require_no_fallback(report)
    calm = dataclasses.replace(report, kernels=(KernelCode(name="kernel", spills=9),))
    require_no_fallback(calm)
    assert Report.from_dict(report.to_dict()) == report
