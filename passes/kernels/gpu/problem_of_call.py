"""Describe a call for the cost model (problem.py)."""

from __future__ import annotations

from mxc.formats.formats import E4M3
from mxc.passes.kernels.gpu.calls import GpuContractionCall
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.packed_weights import reads_panels
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.results import Results
from mxc.passes.kernels.gpu.ring.split import is_split
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.targets.matrix_unit import MatrixUnit

#: Most parts into which K is cut.
_MOST_SPLITS = 16
#: Number of groups that is assumed where it comes with each call.
_GROUPS = 32


def problem_of(call: GpuContractionCall, results: Results, unit: MatrixUnit) -> Problem:
    """Return the shapes and widths of a call on `unit`, with what follows the product in its
    kernel. Rows that come with each call are given as 1."""
    return Problem(
        rows=1 if call.of.m is None else call.of.m,
        columns=call.of.n,
        blocks=call.of.k // BLOCK,
        bits=call.bits,
        groups=_GROUPS if call.of.batch is None else call.of.batch,
        halves=results.halves,
        width=call.of.n // 2 if results.after.gated else call.of.n,
        experts=call.of.experts,
        parts=_parts(call),
        shared=(_shared(call.left), _shared(call.right)),
        one_scale=call.right.rows_of_scale % INSTRUCTION.rows == 0,
        in_blocks=results.in_blocks,
        integers=(_is_integer(call.left), _is_integer(call.right)),
        e4m3_scales=(_has_float_scales(call.left), _has_float_scales(call.right)),
        splits=_splits(call),
        panels=reads_panels(call, results, unit),
    )


def _splits(call: GpuContractionCall) -> tuple[int, ...]:
    """Return the numbers of parts into which K may be cut; none for dense sides, experts or
    groups."""
    if call.is_dense or call.of.experts or call.of.batch != 1:
        return ()
    return tuple(
        splits
        for splits in range(2, _MOST_SPLITS + 1)
        if is_split(call.left, splits) and is_split(call.right, splits)
    )


def _is_integer(side: ScaledBlocks | FloatBlocks) -> bool:
    return isinstance(side, ScaledBlocks) and not side.format.element.exponent


def _has_float_scales(side: ScaledBlocks | FloatBlocks) -> bool:
    return isinstance(side, ScaledBlocks) and side.format.scale == E4M3


def _parts(call: GpuContractionCall) -> int:
    """Return the number of floats in registers whose sum is an element of lhs; 0 if none is
    decoded."""
    if call.decoded is None:
        return 0
    return call.left.parts(call.decoded) if isinstance(call.left, FloatBlocks) else 1


def _shared(side: ScaledBlocks | FloatBlocks) -> int:
    """Return the number of blocks of 32 that share an f32 scale; 0 if a side has no such scales."""
    return side.shared if isinstance(side, ScaledBlocks) and side.has_f32_scales else 0
