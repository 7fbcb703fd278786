"""Reads assembly text as kernels, with the descriptors and arguments that directives state.

Source: LLVM, User Guide for AMDGPU Backend, ".amdhsa_kernel" (fields and their defaults) and Code
Object V5 Metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mxc.artifact.code_objects.metadata import kernel_entries
from mxc.artifact.code_objects.msgpack import Value
from mxc.errors import CodeObjectError
from mxc.simulator.assembly.expressions import evaluate
from mxc.simulator.assembly.listing import Listing, read_listing
from mxc.simulator.assembly.metadata import read_metadata
from mxc.simulator.assembly.source import SourceLine, refuse
from mxc.simulator.code.code_object import (
    USER_SGPRS,
    Argument,
    CodeObjectKernel,
    Descriptor,
    Workgroup,
    metadata_arguments,
    metadata_workgroup,
    user_places,
)
from mxc.simulator.errors import AssemblyError

#: Fields of .amdhsa_kernel that execution depends on, with their defaults.
_FIELDS = {
    "group_segment_fixed_size": 0,
    "private_segment_fixed_size": 0,
    "kernarg_size": 0,
    "user_sgpr_count": -1,
    **{f"user_sgpr_{name}": 0 for name in USER_SGPRS},
    "user_sgpr_kernarg_preload_length": 0,
    "user_sgpr_kernarg_preload_offset": 0,
    "system_sgpr_workgroup_id_x": 1,
    "system_sgpr_workgroup_id_y": 0,
    "system_sgpr_workgroup_id_z": 0,
    "system_vgpr_workitem_id": 0,
    "next_free_vgpr": 256,
    "accum_offset": 256,
    "float_round_mode_32": 0,
    "float_round_mode_16_64": 0,
    "float_denorm_mode_32": 0,
    "float_denorm_mode_16_64": 3,
    "dx10_clamp": 1,
    "ieee_mode": 1,
    "fp16_overflow": 0,
}
#: Fields that the simulator does not support.
_REFUSED = ("system_sgpr_workgroup_info",)
#: Fields without an effect here.
_IGNORED = """
    next_free_sgpr reserve_vcc reserve_xnack_mask reserve_flat_scratch tg_split
    uses_dynamic_stack enable_private_segment system_sgpr_private_segment_wavefront_offset
    inst_pref_size named_barrier_count
"""
#: A text without .amdhsa_kernel may use all of LDS.
_LDS = 160 * 1024


def read_assembly(
    text: str,
    file: str,
    *,
    workgroup: Workgroup | None = None,
    buffers: int = 0,
    constants: int = 0,
) -> dict[str, CodeObjectKernel]:
    """Return the kernels of assembly text for gfx950, by name.

    file: the file's name in errors. workgroup: work items of a workgroup, where the metadata does
    not state them. buffers, constants: numbers of arguments of kernels without metadata, addresses
    before 32-bit numbers. A text without `.amdhsa_kernel` is one kernel. It starts with the address
    of the arguments in s[0:1], then the addresses of the buffers (s[2:3], ..), the constants, and
    the workgroup's x, y and z; v0 holds the work item's x, y and z in ten bits each.

    Raises AssemblyError, which begins with file and line.
    """
    listing = read_listing(text, file)
    arguments = [Argument("global_buffer", 8 * n, 8) for n in range(buffers)]
    arguments += [Argument("by_value", 8 * buffers + 4 * n, 4) for n in range(constants)]
    if not listing.blocks:
        return _snippet(listing, file, workgroup, tuple(arguments))
    stated = _stated(listing)
    kernels = {}
    for name, block in listing.blocks.items():
        place = block[""][1]
        if name not in listing.labels:
            raise refuse(place, f"no label {name} where the kernel's code would begin")
        descriptor = _descriptor(block, listing.symbols, listing.labels[name])
        entry = stated.get(name)
        try:
            own = tuple(arguments) if entry is None else metadata_arguments(entry)
            size = metadata_workgroup(entry, name, workgroup)
        except CodeObjectError as error:
            raise refuse(place, str(error)) from error
        if entry is None and not descriptor.kernarg_bytes:
            descriptor = replace(descriptor, kernarg_bytes=8 * buffers + 4 * constants)
        kernels[name] = _kernel(listing, name, own, size, descriptor)
    return kernels


def _stated(listing: Listing) -> dict[str, Value]:
    """Return the metadata of each kernel, by name."""
    if listing.metadata is None:
        return {}
    text, place = listing.metadata
    try:
        return kernel_entries(read_metadata(text, place))
    except CodeObjectError as error:
        raise refuse(place, str(error)) from error


def _kernel(
    listing: Listing,
    name: str,
    arguments: tuple[Argument, ...],
    workgroup: Workgroup,
    descriptor: Descriptor,
) -> CodeObjectKernel:
    return CodeObjectKernel(
        name, arguments, workgroup, descriptor, b"", 0, listing.instructions, listing.places
    )


def _snippet(
    listing: Listing, file: str, workgroup: Workgroup | None, arguments: tuple[Argument, ...]
) -> dict[str, CodeObjectKernel]:
    if listing.metadata is not None:
        raise refuse(listing.metadata[1], "metadata, but no .amdhsa_kernel")
    if workgroup is None:
        raise AssemblyError(
            f"{file}: no metadata states the workgroup's size; give it as workgroup=(64, 1, 1)"
        )
    size = sum(argument.size for argument in arguments)
    if size > 4 * 96:
        raise AssemblyError(f"{file}: {len(arguments)} arguments do not fit into scalar registers")
    begin = min(listing.instructions)
    names = [label for label, at in listing.labels.items() if at == begin]
    descriptor = Descriptor(
        lds_bytes=_LDS,
        scratch_bytes=0,
        kernarg_bytes=size,
        entry=begin,
        vgprs=512,
        first_agpr=256,
        mode=0x3F0,
        user_sgprs=2 + size // 4,
        workgroup_ids=(True, True, True),
        workitem_dimensions=3,
        user={"kernarg_segment_ptr": 0},
        preload_sgpr=2,
        preload_dwords=size // 4,
        preload_offset=0,
        preload_prologue=False,
    )
    name = names[0] if names else "kernel"
    return {name: _kernel(listing, name, arguments, workgroup, descriptor)}


def _descriptor(
    block: Mapping[str, tuple[str, SourceLine]], symbols: Mapping[str, int], entry: int
) -> Descriptor:
    values = dict(_FIELDS)
    place = block[""][1]
    for name, (text, here) in block.items():
        if not name or name in _IGNORED.split() or name.startswith("exception_"):
            continue
        value = evaluate(text, symbols, here)
        if name in _REFUSED and value:
            raise refuse(here, f".amdhsa_{name} {value}: the simulator does not provide it")
        if name in _FIELDS and value < 0:
            raise refuse(here, f".amdhsa_{name} {value}, wanted 0 or more")
        if name not in _FIELDS and name not in _REFUSED:
            raise refuse(here, f".amdhsa_{name} is no field of a kernel for gfx950")
        values[name] = value
    preload = values["user_sgpr_kernarg_preload_length"]
    try:
        places, fixed = user_places([n for n in USER_SGPRS if values[f"user_sgpr_{n}"]])
    except CodeObjectError as error:
        raise refuse(place, str(error)) from error
    stated = values["user_sgpr_count"]
    user = stated if stated >= 0 else fixed + preload
    if user < fixed + preload or user > 32:
        raise refuse(place, f".amdhsa_user_sgpr_count {user}, wanted {fixed + preload} to 32")
    vgprs = max(8, -(-values["next_free_vgpr"] // 8) * 8)
    if vgprs > 512 or values["accum_offset"] % 4 or not 4 <= values["accum_offset"] <= 256:
        raise refuse(
            place,
            f"{values['next_free_vgpr']} vector registers with .amdhsa_accum_offset "
            f"{values['accum_offset']}, wanted at most 512, and a multiple of 4 from 4 to 256",
        )
    mode = values["float_round_mode_32"] | values["float_round_mode_16_64"] << 2
    mode |= values["float_denorm_mode_32"] << 4 | values["float_denorm_mode_16_64"] << 6
    mode |= values["dx10_clamp"] << 8 | values["ieee_mode"] << 9 | values["fp16_overflow"] << 23
    return Descriptor(
        lds_bytes=values["group_segment_fixed_size"],
        scratch_bytes=values["private_segment_fixed_size"],
        kernarg_bytes=values["kernarg_size"],
        entry=entry,
        vgprs=vgprs,
        first_agpr=values["accum_offset"],
        mode=mode,
        user_sgprs=user,
        workgroup_ids=(
            bool(values["system_sgpr_workgroup_id_x"]),
            bool(values["system_sgpr_workgroup_id_y"]),
            bool(values["system_sgpr_workgroup_id_z"]),
        ),
        workitem_dimensions=values["system_vgpr_workitem_id"] + 1,
        user=places,
        preload_sgpr=fixed,
        preload_dwords=preload,
        preload_offset=values["user_sgpr_kernarg_preload_offset"],
    )
