"""mxc-check-dispatches: refuse a kernel that takes more arguments than IREE's runtime passes.

The runtime hands a kernel at most 64 constants (sizes and offsets of a call, in pieces of 32 bits),
and 32 buffers, 16 on AMD GPUs. The compiler does not know: such a program would be written, and
nobody could load it.

Runs after IREE's phase executable-sources, when the arguments of a kernel are final.

before:
    hal.executable.export public @main_dispatch_0 layout(#hal.pipeline.layout<constants = 94, ..>)
after:
    a refusal that names the kernel, what it takes, and the limit

Leaves alone: kernels within the limits.

Source of the limits: what IREE 3.13 loads on a CPU, and what its messages say (hal/local and the
HAL module); for AMD GPUs IREE_HAL_HIP_MAX_DISPATCH_CONSTANT_COUNT and _BINDING_COUNT of its HIP
driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.locations import place_of
from mxc.dialects.named_operations import symbol_of
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import EXPORT, inside

_CONSTANTS = 64
#: Most buffers of a kernel: of other drivers, and of the HIP driver (AMD GPUs).
_BUFFERS, _BUFFERS_OF_HIP = 32, 16
_COUNTED = re.compile(r"constants = (\d+)")
_BUFFER = "#hal.pipeline.binding<"


@dataclass(frozen=True)
class CheckDispatches(Pass):
    """Refuse a kernel that takes more arguments than IREE's runtime passes."""

    name = "mxc-check-dispatches"

    def run(self, module: ir.Operation) -> None:
        """Raise PassError at the first kernel that takes too many."""
        for variant in inside([module], "hal.executable", "hal.executable.variant"):
            most = _BUFFERS_OF_HIP if '"rocm"' in str(variant.attributes["target"]) else _BUFFERS
            for export in inside([variant], EXPORT):
                layout = str(export.attributes["layout"])
                found = _COUNTED.search(layout)
                constants = int(found[1]) if found else 0
                buffers = layout.count(_BUFFER)
                if constants > _CONSTANTS:
                    _refuse(export, f"{constants} sizes and offsets", _CONSTANTS)
                if buffers > most:
                    _refuse(export, f"{buffers} buffers", most)


def _refuse(export: ir.Operation, taken: str, most: int) -> None:
    symbol = symbol_of(export)
    raise PassError(
        f"kernel {symbol} takes {taken} of a call, and IREE's runtime passes {most}; give "
        "dimensions of the program known sizes, or compute its parts in functions of their own",
        place_of(export.location),
    )
