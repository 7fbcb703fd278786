"""Translates the instructions of a hot loop into the steps of the issue model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mxc.compiler.report.loops import LoopInstruction
from mxc.targets.compute_unit import PipeRates
from mxc.targets.mfma_clocks import matrix_clocks

Pipe = Literal["matrix", "vector", "scalar", "lds", "memory", "wait", "barrier", "nop"]
_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
#: Instructions that a SIMD does not run beside one of its matrix core. Source: LLVM,
#: SIInstrInfo::isNeverCoissue (llvm-project pull request 157968): packed arithmetic, dot products,
#: transcendental functions and these conversions.
_ALONE = (
    *("v_pk_", "v_dot", "v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32", "v_mqsad_", "v_qsad_"),
    *_TRANSCENDENTAL,
)
_DWORDS = re.compile(r"dwordx(\d)")
_BITS = re.compile(r"_[bui](\d+)(?=_|$)")
#: Suffixes of loads and stores of less than a dword in older LLVM, which did not write the bits.
_NARROW = {
    1: ("byte", "byte_d16", "byte_d16_hi"),
    2: ("short", "short_d16", "short_d16_hi"),
}
_COUNTER = re.compile(r"(\w+cnt)\((\d+)\)")


@dataclass(frozen=True, kw_only=True)
class IssueStep:
    """Demand of one instruction on the compute unit.

    clocks: busy clocks of the matrix core or the vector unit, or idle ones of s_nop; alone: whether
    the matrix core of the SIMD computes nothing beside it; lane_bytes: bytes that a lane moves;
    to_lds: a load from memory to LDS; vm, lgkm: largest values of these counters with which a wait
    ends.
    """

    pipe: Pipe
    clocks: int = 0
    alone: bool = False
    lane_bytes: int = 0
    to_lds: bool = False
    vm: int | None = None
    lgkm: int | None = None


def read_steps(lines: Iterable[LoopInstruction], rates: PipeRates) -> list[IssueStep]:
    """Return the step of each instruction. Raises KeyError for an unknown matrix instruction."""
    return [_step(line, rates) for line in lines]


def _step(line: LoopInstruction, rates: PipeRates) -> IssueStep:
    kind, mnemonic = line.kind, line.mnemonic
    if kind == "matrix":
        clocks = matrix_clocks(mnemonic, line.operands)
        if clocks is None:
            raise KeyError(mnemonic)
        return IssueStep(pipe="matrix", clocks=clocks)
    if kind in ("ds_read", "ds_write"):
        return IssueStep(pipe="lds", lane_bytes=_bytes(mnemonic))
    if kind in ("load_to_lds", "global_load", "global_store", "scratch"):
        return IssueStep(pipe="memory", lane_bytes=_bytes(mnemonic), to_lds=kind == "load_to_lds")
    if kind == "wait":
        counters = {name: int(value) for name, value in _COUNTER.findall(line.operands)}
        return IssueStep(pipe="wait", vm=counters.get("vmcnt"), lgkm=counters.get("lgkmcnt"))
    if kind == "barrier":
        return IssueStep(pipe="barrier")
    if kind == "nop":
        idle = int(line.operands or "0", 0) + 1 if mnemonic == "s_nop" else 1
        return IssueStep(pipe="nop", clocks=rates.issue * idle)
    if kind in ("salu", "branch", "scalar_load"):
        return IssueStep(pipe="scalar", lane_bytes=4 if kind == "scalar_load" else 0)
    slow = mnemonic.startswith(_TRANSCENDENTAL)
    clocks = rates.transcendental if slow else rates.issue
    return IssueStep(pipe="vector", clocks=clocks, alone=mnemonic.startswith(_ALONE))


def lane_bytes(mnemonic: str) -> int:
    """Bytes per lane of a memory or LDS instruction: 16 for dwordx4 and b128, 1 for ubyte."""
    twice = 2 if "read2" in mnemonic or "write2" in mnemonic else 1
    found = _DWORDS.search(mnemonic)
    if found is not None:
        return twice * 4 * int(found[1])
    bits = _BITS.search(mnemonic)
    if bits is not None:
        return twice * int(bits[1]) // 8
    narrow = next((size for size, names in _NARROW.items() if mnemonic.endswith(names)), 4)
    return twice * narrow


def _bytes(mnemonic: str) -> int:
    """Return `lane_bytes` for timing: less than a dword takes as long as a dword."""
    return max(4, lane_bytes(mnemonic))
