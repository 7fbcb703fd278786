"""The metadata of the kernels in a code object.

Source: the LLVM documentation "User Guide for AMDGPU Backend", section Code Object Metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.artifact.code_objects import elf
from mxc.artifact.code_objects.msgpack import Value, unpack
from mxc.errors import CodeObjectError


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a kernel: registers per lane (`vgpr`, `agpr`) and per wave (`sgpr`), spilled
    registers, bytes of scratch and LDS, and the most work-items of a workgroup.

    `vgpr` includes accumulation registers where both are one register file (gfx942, gfx950).
    """

    vgpr: int
    agpr: int
    sgpr: int
    spills: int
    scratch_bytes: int
    lds_bytes: int
    workgroup_size: int


def read_resources(data: bytes) -> dict[str, Resources]:
    """The resources of each kernel of a code object. Raises CodeObjectError for any other file."""
    return resources(unpack(elf.note(data, elf.read_sections(data))))


def resources(metadata: Value) -> dict[str, Resources]:
    """The resources of each kernel, from the metadata of a code object or of assembly text."""
    return {name: _resources(entry) for name, entry in kernel_entries(metadata).items()}


def kernel_entries(metadata: Value) -> dict[str, Value]:
    """The metadata of each kernel, by name. Raises CodeObjectError for none, or a repeated name."""
    kernels: dict[str, Value] = {}
    for entry in items(metadata, "amdhsa.kernels"):
        name = string(entry, ".name")
        if name in kernels:
            raise CodeObjectError(f"metadata: the kernel {name} for the second time")
        kernels[name] = entry
    if not kernels:
        raise CodeObjectError("the code object holds no kernel")
    return kernels


def _resources(entry: Value) -> Resources:
    shared = value_of(entry, ".agpr_count", optional=True) is not None
    return Resources(
        vgpr=integer(entry, ".vgpr_count"),
        agpr=integer(entry, ".agpr_count") if shared else 0,
        sgpr=integer(entry, ".sgpr_count"),
        spills=integer(entry, ".vgpr_spill_count") + integer(entry, ".sgpr_spill_count"),
        scratch_bytes=integer(entry, ".private_segment_fixed_size"),
        lds_bytes=integer(entry, ".group_segment_fixed_size"),
        workgroup_size=integer(entry, ".max_flat_workgroup_size"),
    )


def value_of(value: Value, key: str, *, optional: bool = False) -> Value:
    """The value of a key; if it is missing, None if optional, else raises CodeObjectError."""
    if not isinstance(value, dict) or (key not in value and not optional):
        raise CodeObjectError(f"metadata: no {key!r} where one was wanted")
    return value.get(key)


def items(value: Value, key: str, *, optional: bool = False) -> list[Value]:
    """The list at a key, empty if optional and missing. Raises CodeObjectError for other values."""
    found = value_of(value, key, optional=optional)
    if found is None and optional:
        return []
    if not isinstance(found, list):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a list")
    return found


def string(value: Value, key: str) -> str:
    """The string at a key. Raises CodeObjectError for other values."""
    found = value_of(value, key)
    if not isinstance(found, str):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a string")
    return found


def integer(value: Value, key: str) -> int:
    """The integer at a key. Raises CodeObjectError for other values."""
    found = value_of(value, key)
    if not isinstance(found, int):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a number")
    return found
