"""mxc-check-dispatches: refuse a kernel that takes more arguments than IREE's runtime passes.

The runtime hands a kernel at most 64 constants (sizes and offsets of a call, in pieces of 32 bits),
and 64 buffers on CPUs, 16 on AMD GPUs. The compiler does not know: such a program would be written,
and nobody could load it.

Runs after IREE's phase executable-sources, when the arguments of a kernel are final.

before:
    hal.executable.export public @main_dispatch_0 layout(#hal.pipeline.layout<constants = 94, ..>)
after:
    a refusal that names the kernel, what it takes, and the limit

Leaves alone: kernels within the limits.

Source of the limits: IREE 3.13, IREE_HAL_EXECUTABLE_MAX_CONSTANT_COUNT and _BINDING_COUNT of
hal/local, IREE_HAL_HIP_MAX_DISPATCH_CONSTANT_COUNT and _BINDING_COUNT of the HIP driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree.compiler import ir

from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import EXPORT, inside

_CONSTANTS = 64
#: Buffers of a kernel, at most, by the name of IREE's driver in the target of an executable.
_BUFFERS = {"llvm-cpu": 64, "rocm": 16}
_COUNTED = re.compile(r"constants = (\d+)")
_BUFFER = "#hal.pipeline.binding<"


@dataclass(frozen=True)
class CheckDispatches(Pass):
    """Refuse a kernel that takes more arguments than IREE's runtime passes."""

    name = "mxc-check-dispatches"

    def run(self, module: ir.Operation) -> None:
        """Raise PassError at the first kernel that takes too many."""
        for variant in inside([module], "hal.executable", "hal.executable.variant"):
            target = str(variant.attributes["target"])
            most = next((count for name, count in _BUFFERS.items() if f'"{name}"' in target), None)
            for export in inside([variant], EXPORT):
                layout = str(export.attributes["layout"])
                found = _COUNTED.search(layout)
                constants = int(found[1]) if found else 0
                buffers = layout.count(_BUFFER)
                if constants > _CONSTANTS:
                    _refuse(export, f"{constants} sizes and offsets", _CONSTANTS)
                if most is not None and buffers > most:
                    _refuse(export, f"{buffers} buffers", most)


def _refuse(export: ir.Operation, taken: str, most: int) -> None:
    symbol = ir.StringAttr(export.attributes["sym_name"]).value
    raise PassError(
        f"kernel {symbol} takes {taken} of a call, and IREE's runtime passes {most}; give "
        "dimensions of the program known sizes, or compute its parts in functions of their own",
        export.location,
    )
