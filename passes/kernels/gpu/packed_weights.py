"""Which weights are packed in panels when a model is compiled, and the calls that read them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.passes.kernels.gpu.calls import GpuContractionCall
from mxc.passes.kernels.gpu.float_scales import sums_of
from mxc.passes.kernels.gpu.floats import loaded_ahead
from mxc.passes.kernels.gpu.panels import LAYOUT, PIECE, padded
from mxc.passes.kernels.gpu.results import Results
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.parameters import load, loads, parameters_of, read_only_by, relay
from mxc.passes.kernels.vectors import i8
from mxc.targets.matrix_unit import MatrixUnit

#: Lane groups with different blocks along K, the most that an instruction has.
_GROUPS = 4


class PackedWeights:
    """The parameters of a module that kernels read in panels.

    These are weights whose elements only such kernels read, and all of them in one order: as the
    same number of bytes, and as matrices whose panels coincide (formats/panels.py).
    """

    def __init__(
        self, module: ir.Operation, calls: Sequence[GpuContractionCall], unit: MatrixUnit
    ) -> None:
        """Find these parameters, before any of `calls` is lowered for `unit`."""
        self._module = module
        fitting = [call for call in calls if reads_panels(call, Results.of(call, unit), unit)]
        lowered = {op for call in fitting for op in (call.op, *call.chain)}
        sizes: dict[str, set[int]] = {}
        rows: dict[str, set[tuple[int, int]]] = {}
        for call in fitting:
            name = call.parameter or ""
            sizes.setdefault(name, set()).add(_bytes(call))
            rows.setdefault(name, set()).add((max(call.of.experts, 1), call.of.n))
        one = {name: rows[name] for name, found in sizes.items() if len(found) == 1}
        self._matrices = {name: min(found) for name, found in one.items()}
        known = parameters_of(module, one)
        known -= {name for name, op in loads(module) if not read_only_by(op, lowered)}
        self._bytes = {name: size for name in known for size in sizes[name]}

    def read_by(self, call: GpuContractionCall) -> GpuContractionCall:
        """Return the call; if its weights are packed, one that reads them in panels.

        The load of the packed weights is built at the insertion point.
        """
        name = call.parameter
        if name is None or name not in self._bytes:
            return call
        packed = load(name, self._type(name))
        return replace(call, right=replace(call.right, panels=1), rhs=(packed, *call.rhs[1:]))

    def relay(self) -> None:
        """Set the type and the layout of the parameters, after all calls are lowered."""
        for name in self._bytes:
            relay(self._module, name, self._type(name), LAYOUT, self._matrices[name])

    def _type(self, name: str) -> ir.Type:
        return ir.RankedTensorType.get([self._bytes[name]], i8())


def reads_panels(call: GpuContractionCall, results: Results, unit: MatrixUnit) -> bool:
    """Return whether the kernels of a call read panels, if nothing else reads its weights.

    Each lane must read whole pieces of 16 bytes. It does not if a k-step is several sums, because
    lanes then have parts of a block. Kernels that pack keys and values have no registers left for
    the addresses of panels on GPUs with few registers per lane.
    """
    if results.in_blocks and results.rotary is not None and not loaded_ahead(unit):
        return False
    sides = [each for each in (call.left, call.right) if isinstance(each, ScaledBlocks)]
    shared = [each.shared for each in sides if each.has_f32_scales]
    parts = sums_of(_GROUPS, *shared) if shared else 1
    return call.parameter is not None and parts == 1 and call.right.block_bytes % PIECE == 0


def _bytes(call: GpuContractionCall) -> int:
    """Return the bytes of the elements of all experts in panels."""
    rows = max(call.of.experts, 1) * padded(call.of.n)
    return rows * call.right.blocks * call.right.block_bytes
