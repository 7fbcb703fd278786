"""Run artifacts for gfx950 and gfx942 on the simulator: `load` returns a Model like any other.

The host program of the artifact is interpreted (`vm.py`), and every dispatch runs on the simulator.
Buffers belong to a local IREE device, so that code for a Model works with this one too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.manifest import Manifest, read_manifest
from mxc.errors import ArtifactError, CodeObjectError, RequestError
from mxc.runtime import arrays
from mxc.runtime.device import open_device
from mxc.runtime.entries import Entry
from mxc.runtime.integrity import check_files, check_model, check_version
from mxc.runtime.levels import choose_level
from mxc.runtime.session import Model, load_parameters
from mxc.simulator.code.processors import PROCESSORS
from mxc.simulator.compute.operations import Array
from mxc.simulator.host.hal import HalBuffer, HalDevice, Observe, SimulatedDispatch, View
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import HostModule, read_module

#: The device URI that means this module.
SIMULATOR = "simulator"
_DENSE = 1
#: Makes the device that runs the dispatches, from the bytes of every parameter by name.
Make = Callable[[Mapping[str, Array]], HalDevice]


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = False,
    observe: Observe | None = None,
    make: Make | None = None,
) -> SimulatedModel:
    """Load an artifact for gfx950 or gfx942, to run on the simulator.

    verify: see `mxc.load`. observe: called before each dispatch; returns a Sanitizer, Counter or
    Trace for it, or None. make: makes the device that runs the dispatches, from the bytes of every
    parameter; by default a simulated device. Raises ArtifactError as `mxc.load` does, and
    RequestError for an artifact of another target.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    place = str(folder)
    check_version(manifest, place)
    chips = [each.name for each in PROCESSORS.values()]
    if manifest.target.name not in chips:
        raise RequestError(
            f"{place}: compiled for {manifest.target.name}; the simulator runs "
            f"{' and '.join(chips)}, compile it with --target {chips[0]}"
        )
    if manifest.model is not None and manifest.model.devices > 1:
        raise RequestError(
            f"{place}: compiled for {manifest.model.devices} devices; the simulator is one: "
            "compile it without --devices"
        )
    if not manifest.weights_present:
        raise ArtifactError(
            f"{place}: compiled with --weights none: it can be inspected but not run; "
            "compile it again with its weights"
        )
    level = choose_level(manifest, None, place)
    check_model(manifest, place)
    check_files(folder, manifest, verify=verify)
    return SimulatedModel(
        folder, manifest, level, make or (lambda parameters: HalDevice(parameters, observe))
    )


class SimulatedModel(Model):
    """A loaded artifact whose kernels run on the simulator."""

    def __init__(self, path: Path, manifest: Manifest, level: str, make: Make) -> None:
        """Map module and weights; use `load` instead of calling this directly."""
        device = open_device("local-sync", 1, str(path))
        self._describe(path, manifest, level, [device], 1, SIMULATOR)
        try:
            module = read_module(self.module_file)
            self._simulated = make(_parameters(self.archives))
            self._machine = Machine(module, self._simulated.functions())
        except CodeObjectError as error:
            raise ArtifactError(
                f"{self.module_file}: {error}; compile the artifact again"
            ) from error
        self._module = _Functions(module)
        self._entries = self._find_entries()

    @property
    def runs_on_cpu(self) -> bool:
        """Return True: the device's buffers are in this process's memory."""
        return True

    @property
    def dispatches(self) -> list[SimulatedDispatch]:
        """The kernels that ran, in order."""
        return self._simulated.dispatches

    def invoke(self, name: str, arguments: Items[Any]) -> list[Any]:
        """See Model.invoke: HalBufferViews and numbers, unchecked; buffers may change in place."""
        entry = self.entry(name)
        views = [a for a in arguments if not isinstance(a, int | float)]
        with self._lock:
            results = self._machine.call(name, *(map(self._inside, arguments)))
        return [
            self._outside(value, kind.stored.dtype, views)
            for value, kind in zip(results, entry.function.outputs, strict=True)
        ]

    def _find_entries(self) -> dict[str, Entry]:
        return {
            name: Entry(self._module, name, function, self.module_file)
            for name, function in self.manifest.functions.items()
        }

    def _inside(self, value: Any) -> Any:
        """Convert an argument for the host program: a View of the same memory."""
        if isinstance(value, int | float):
            return value
        data = _memory(arrays.window(self.device, value))
        return View(HalBuffer.over(data), tuple(value.shape), int(value.element_type), _DENSE)

    def _outside(self, value: Any, dtype: str, given: list[Any]) -> Any:
        """Convert a result to a HalBufferView: the argument itself if it was updated in place."""
        if not isinstance(value, View):
            return value
        data = value.buffer.bytes
        for view in given:
            held = _memory(arrays.window(self.device, view))
            same = held.ctypes.data == data.ctypes.data and held.nbytes == data.nbytes
            if same and tuple(view.shape) == value.shape:
                return view
        typed = np.frombuffer(data.tobytes(), arrays.DTYPES[dtype]).reshape(value.shape)
        return arrays.to_device(self.device, typed, dtype)


def _memory(window: Array) -> Array:
    """Return the writable bytes of a local device's buffer, without a copy."""
    if not window.flags.writeable and window.size:
        raise RequestError("a buffer that the local device does not let us write")
    return window.reshape(-1).view(np.uint8)


def _parameters(archives: Items[Path]) -> dict[str, Array]:
    """Return the mapped bytes of every parameter, by name."""
    found: dict[str, Array] = {}
    for name, entry in load_parameters(archives).items():
        if entry.is_file:
            found[name] = np.frombuffer(entry.file_view, np.uint8)
        else:
            pattern = np.frombuffer(entry.splat_pattern, np.uint8)
            found[name] = np.resize(pattern, entry.length)
    return found


@dataclass(frozen=True)
class _Function:
    """A function of the host program, with the attributes that Model reads."""

    reflection: dict[str, str]


class _Functions:
    """The host program, with the method that Model calls on a rt.VmModule."""

    def __init__(self, module: HostModule) -> None:
        self._module = module

    def lookup_function(self, name: str) -> _Function | None:
        if name not in self._module.exports:
            return None
        return _Function(self._module.attributes.get(name, {}))
