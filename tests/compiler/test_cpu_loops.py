"""The hot loop of a CPU kernel, and what is counted in it."""

import pytest

from mxc.compiler.report.assembly import parse
from mxc.compiler.report.cpu_loops import CPU_KINDS, describe_cpu, hot_cpu_loop, kind_of
from mxc.compiler.report.loops import read_line

X86 = """
\txorl\t%eax, %eax
.LBB0_1:                                # %.lr.ph
\tvmovups\t(%rdi,%rax), %zmm0
\tvfmadd231ps\t(%rsi){1to16}, %zmm0, %zmm1
\taddq\t$64, %rax
\tjb\t.LBB0_1
.LBB0_2:                                # =>This Loop Header: Depth=1
\txorl\t%ecx, %ecx
.LBB0_3:                                #   Parent Loop BB0_2 Depth=1
\tprefetcht0\t1024(%rdi)
\tvmovdqu64\t(%rdi,%rcx), %zmm0
\tvpermw\t%zmm0, %zmm5, %zmm0
\tvcvtph2ps\t%ymm0, %zmm0
\tvpaddd\t%zmm0, %zmm4, %zmm0
\tvdpbf16ps\t%zmm0, %zmm2, %zmm1
\tvdpbf16ps\t%zmm0, %zmm3, %zmm1
\tvmovups\t%zmm1, (%rdx)
\taddq\t$64, %rcx
\tcmpq\t$512, %rcx
\tjb\t.LBB0_3
# %bb.4:
\taddq\t$1, %r8
\tjb\t.LBB0_2
\tretq
"""
ARM = """
.LBB0_1:
\tldp\tq0, q1, [x0], #32
\ttbl\tv0.16b, { v4.16b }, v0.16b
\tscvtf\tv0.4s, v0.4s
\tfmla\tv2.4s, v0.4s, v1.s[0]
\tmul\tx3, x3, x4
\tsubs\tx2, x2, #1                     // =16
\tb.ne\t.LBB0_1
\tret
"""


def test_the_innermost_loop_that_multiplies_most_is_hot() -> None:
    found = describe_cpu(X86)
    assert found is not None
    assert found.is_loop
    assert found.census == {
        "multiply": 2, "permute": 1, "convert": 1, "vector": 1, "load": 1, "store": 1,
        "prefetch": 1, "scalar": 2, "branch": 1,
    }  # fmt: skip
    assert list(found.census) == [kind for kind in CPU_KINDS if kind in found.census]
    assert (found.instructions, found.clocks) == (11, None)


def test_matrix_units_are_before_vectors() -> None:
    tiles = X86.replace(
        "vfmadd231ps\t(%rsi){1to16}, %zmm0, %zmm1", "tdpbf16ps\t%tmm1, %tmm2, %tmm0"
    )
    assert [line.mnemonic for line in hot_cpu_loop(tiles).lines][1] == "tdpbf16ps"


def test_aarch64() -> None:
    found = describe_cpu(ARM)
    assert found is not None
    assert found.census == {
        "multiply": 1, "permute": 1, "convert": 1, "load": 1, "scalar": 2, "branch": 1,
    }  # fmt: skip


def test_a_kernel_without_a_loop_counts_as_a_whole() -> None:
    found = describe_cpu("\n\tvmovups\t(%rdi), %ymm0\n\tvmovups\t%ymm0, (%rsi)\n\tretq\n")
    assert found is not None
    assert not found.is_loop
    assert found.census == {"load": 1, "store": 1, "branch": 1}
    assert describe_cpu("") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\ttileloadd\t(%rsi,%rdi), %tmm0", "load"),
        ("\ttilestored\t%tmm0, (%rsi,%rdi)", "store"),
        ("\tvbroadcastss\t(%rsi), %zmm0", "load"),
        ("\tvpdpbusd\t(%rsi), %ymm0, %ymm1", "multiply"),
        ("\tvmulss\t%xmm0, %xmm1, %xmm2", "multiply"),
        ("\tmovq\t%rax, 8(%rsp)", "store"),
        ("\tbfmmla\tv0.4s, v1.8h, v2.8h", "matrix"),
        ("\tst1\t{ v0.4s }, [x0]", "store"),
        ("\tcallq\tmemcpy@PLT", "branch"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    line = read_line(text)
    assert line is not None
    assert kind_of(line) == kind


def test_kernels_of_a_report_have_it() -> None:
    end = ".Lfunc_end0:\n\t.size\tk, .Lfunc_end0-k\n"
    (kernel,) = parse(f"\t.type\tk,@function\nk:\n{X86}{end}")
    assert kernel.hot_loop == describe_cpu(X86)
