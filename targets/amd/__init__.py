"""AMD GPUs that mxc compiles for: one file and one record each."""

from __future__ import annotations

from mxc.errors import PassError
from mxc.targets.amd.gfx942 import GFX942
from mxc.targets.amd.gfx950 import GFX950
from mxc.targets.amd.gfx1151 import GFX1151
from mxc.targets.amd.gfx1201 import GFX1201
from mxc.targets.amd.gfx1250 import GFX1250
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixUnit

__all__ = [
    "GFX942",
    "GFX950",
    "GFX1151",
    "GFX1201",
    "GFX1250",
    "GPUS",
    "gpu",
    "gpu_of",
    "known_gpu",
]

GPUS = (GFX950, GFX942, GFX1250, GFX1201, GFX1151)


def gpu(name: str) -> Gpu | None:
    """The GPU that LLVM calls `name`; None for a CPU and for an unknown one."""
    return next((each for each in GPUS if each.name == name), None)


def gpu_of(unit: MatrixUnit) -> Gpu:
    """The GPU that has these matrix instructions."""
    return next(each for each in GPUS if each.matrix == unit)


def known_gpu(name: str) -> Gpu:
    """The GPU that LLVM calls `name`. Raises PassError for one without kernels."""
    found = gpu(name)
    if found is None:
        known = ", ".join(each.name for each in GPUS)
        raise PassError(f"no kernel of ours is for {name!r}; there are some for {known}")
    return found
