"""Code objects of gfx950 and gfx942: their kernels, and the initial state that each requests.

Sources: the LLVM documentation "User Guide for AMDGPU Backend", sections Code Object Metadata
(the note), Kernel Descriptor (64 bytes per kernel) and Initial Kernel Execution State.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mxc.artifact.code_objects import elf
from mxc.artifact.code_objects.metadata import (
    integer,
    items,
    kernel_entries,
    string,
    value_of,
)
from mxc.artifact.code_objects.msgpack import Value, unpack
from mxc.errors import CodeObjectError
from mxc.simulator.code import processors
from mxc.simulator.code.debug_lines import read_lines
from mxc.simulator.code.decode import decode
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.errors import SimulationError
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Work items of a workgroup in x, y and z.
Workgroup: TypeAlias = tuple[int, int, int]
#: Most bytes of scratch of a work item: 8 MiB for 64 work items.
LARGEST_SCRATCH = 128 * 1024
_LARGEST_ARGUMENTS = 1 << 16
#: Values that a kernel can request in its first scalar registers, in their order, and the number of
#: registers of each (LLVM, User Guide for AMDGPU Backend, SGPR Register Set Up Order).
USER_SGPRS = {
    "private_segment_buffer": 4,
    "dispatch_ptr": 2,
    "queue_ptr": 2,
    "kernarg_segment_ptr": 2,
    "dispatch_id": 2,
    "flat_scratch_init": 2,
    "private_segment_size": 1,
}
#: Values for processors without architected flat scratch, which gfx942 and gfx950 have.
_NOT_HERE = ("private_segment_buffer", "flat_scratch_init")
#: Values that the simulator does not have; their registers are undefined.
_UNDEFINED = ("queue_ptr", "dispatch_id")


class Argument(NamedTuple):
    """One entry of the kernel's argument segment: `kind` is the metadata's `.value_kind`.

    is_read_only: the compiler states that the kernel does not write through this pointer.
    """

    kind: str
    offset: int
    size: int
    is_read_only: bool = False


@dataclass(frozen=True)
class Descriptor:
    """The fields of a kernel descriptor that execution depends on.

    `mode`: the initial MODE register. `first_agpr`: where accumulation registers begin in the
    unified register file. `user`: the first register of each entry of USER_SGPRS that is requested.
    """

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int
    vgprs: int
    first_agpr: int
    mode: int
    user_sgprs: int
    workgroup_ids: tuple[bool, bool, bool]
    workitem_dimensions: int
    user: Mapping[str, int]
    preload_sgpr: int
    preload_dwords: int
    preload_offset: int
    #: Whether the code begins with 256 bytes for firmware that does not preload arguments.
    preload_prologue: bool = True

    @property
    def start(self) -> int:
        """The address of the first instruction that executes."""
        skipped = self.preload_dwords and self.preload_prologue
        return self.entry + 256 if skipped else self.entry

    @property
    def undefined_sgprs(self) -> frozenset[int]:
        """User registers that are undefined in the simulator."""
        asked = [(self.user[name], USER_SGPRS[name]) for name in _UNDEFINED if name in self.user]
        return frozenset(n for first, count in asked for n in range(first, first + count))


def user_places(wanted: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return the first register of each wanted entry of USER_SGPRS, and their total number.

    Raises CodeObjectError for entries that the simulator does not support.
    """
    places, at = {}, 0
    for name, count in USER_SGPRS.items():
        if name in wanted:
            if name in _NOT_HERE:
                raise CodeObjectError(
                    f"asks for {name} in scalar registers, which the simulator does not provide"
                )
            places[name] = at
            at += count
    return places, at


@dataclass(frozen=True)
class CodeObjectKernel:
    """One kernel of a code object or of assembly text.

    workgroup: the size in work items. code: the whole text section; address: its virtual address;
    `descriptor.entry` is the kernel's address. listing: for assembly text, which has no code, the
    instructions by address. lines: source lines of instructions ("kernel.s:12"), by address, as far
    as they are known. image: the readable bytes at the code object's addresses, from 0.
    dynamic_lds: bytes of LDS besides those of the descriptor.
    """

    name: str
    arguments: tuple[Argument, ...]
    workgroup: Workgroup
    descriptor: Descriptor
    code: bytes
    address: int
    listing: Mapping[int, Instruction] | None = field(default=None, repr=False, compare=False)
    lines: Mapping[int, str] = field(default_factory=dict, repr=False, compare=False)
    processor: Gpu = GFX950
    image: bytes = field(default=b"", repr=False, compare=False)
    dynamic_lds: int = 0

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS of a workgroup. Raises SimulationError if the processor has fewer."""
        size = self.descriptor.lds_bytes + self.dynamic_lds
        if self.dynamic_lds < 0 or size > self.processor.workgroup_lds_bytes:
            raise SimulationError(
                f"{self.name}: {self.dynamic_lds} bytes of dynamic LDS beside "
                f"{self.descriptor.lds_bytes}, together at most "
                f"{self.processor.workgroup_lds_bytes}"
            )
        return size

    def fetch(self, address: int) -> Instruction:
        """Return the instruction at an address. Raises SimulationError where there is none."""
        if self.listing is not None:
            if address not in self.listing:
                raise SimulationError(f"{self.name}: no instruction at 0x{address:x}")
            return self.listing[address]
        at = address - self.address
        if not 0 <= at < len(self.code) or at % 4:
            raise SimulationError(f"{self.name}: execution leaves the code at 0x{address:x}")
        i = decode(self.code, at, address)
        if at + i.size > len(self.code):
            raise SimulationError(f"{self.name}: the code ends within an instruction")
        return i

    def location(self, address: int) -> str:
        """Return kernel and address of an instruction, and its source line if it is known."""
        line = self.lines.get(address)
        return f"{self.name}, 0x{address:x}" + (f" ({line})" if line else "")


def read_kernels(data: bytes, *, workgroup: Workgroup | None = None) -> dict[str, CodeObjectKernel]:
    """Return the kernels of a code object (the bytes of an HSACO file), by name.

    workgroup: the workgroup size of kernels whose metadata does not state one. Raises
    CodeObjectError for anything that is not a complete code object for gfx950 or gfx942.
    """
    processor = processors.processor(data)
    sections = elf.read_sections(data)
    symbols = elf.symbols(data, sections)
    stated = kernel_entries(unpack(elf.note(data, sections)))
    lines = read_lines(
        *(elf.contents(data, sections, f".debug_{name}") for name in ("line", "line_str", "str"))
    )
    image = elf.image(data, sections)
    kernels: dict[str, CodeObjectKernel] = {}
    for name, entry in stated.items():
        symbol = string(entry, ".symbol")
        if symbol not in symbols:
            raise CodeObjectError(f"kernel {name}: no symbol {symbol!r} in the code object")
        at = symbols[symbol]
        descriptor = _descriptor(
            elf.bytes_at(data, sections, at, 64, name), at, name, processor.workgroup_lds_bytes
        )
        text = elf.section_of(sections, descriptor.entry, name)
        if descriptor.entry % 4 or text.address % 4:
            raise CodeObjectError(f"kernel {name}: its code is not aligned to 4 bytes")
        kernels[name] = CodeObjectKernel(
            name=name,
            arguments=metadata_arguments(entry),
            workgroup=metadata_workgroup(entry, name, workgroup),
            descriptor=descriptor,
            code=data[text.offset : text.offset + text.size],
            address=text.address,
            lines=lines,
            processor=processor,
            image=image,
        )
    return kernels


def metadata_arguments(entry: Value) -> tuple[Argument, ...]:
    """Return the arguments of a kernel's metadata."""
    return tuple(
        Argument(
            string(item, ".value_kind"),
            integer(item, ".offset"),
            integer(item, ".size"),
            value_of(item, ".actual_access", optional=True) == "read_only",
        )
        for item in items(entry, ".args", optional=True)
    )


def _descriptor(raw: bytes, address: int, name: str, largest_lds: int) -> Descriptor:
    lds, scratch, kernarg, _, entry = struct.unpack_from("<IIIIq", raw)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", raw, 44)
    try:
        places, fixed = user_places([n for i, n in enumerate(USER_SGPRS) if properties >> i & 1])
    except CodeObjectError as error:
        raise CodeObjectError(f"kernel {name}: {error}") from error
    limits = (("LDS", lds, largest_lds), ("scratch", scratch, LARGEST_SCRATCH))
    for what, size, most in (*limits, ("arguments", kernarg, _LARGEST_ARGUMENTS)):
        if size > most:
            raise CodeObjectError(f"kernel {name}: wants {size} bytes of {what}, at most {most}")
    user = rsrc2 >> 1 & 31
    if fixed + (preload & 127) > max(user, fixed):
        raise CodeObjectError(
            f"kernel {name}: preloads {preload & 127} scalar registers behind {fixed}, "
            f"and has {user}"
        )
    return Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        entry=address + entry,
        vgprs=((rsrc1 & 63) + 1) * 8,
        first_agpr=((rsrc3 & 63) + 1) * 4,
        mode=rsrc1 >> 12 & 0xFF
        | (rsrc1 >> 21 & 1) << 8
        | (rsrc1 >> 23 & 1) << 9
        | (rsrc1 >> 26 & 1) << 23,
        user_sgprs=rsrc2 >> 1 & 31,
        workgroup_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        workitem_dimensions=(rsrc2 >> 11 & 3) + 1,
        user=places,
        preload_sgpr=fixed,
        preload_dwords=preload & 127,
        preload_offset=preload >> 7,
    )


def metadata_workgroup(entry: Value, name: str, given: Workgroup | None) -> Workgroup:
    """Return the workgroup size that the metadata states, else the given one.

    Raises CodeObjectError if there is none, if both differ, or if the size is invalid.
    """
    stated = None if entry is None else value_of(entry, ".reqd_workgroup_size", optional=True)
    size = list(given) if stated is None and given is not None else stated
    if size is None:
        raise CodeObjectError(
            f"kernel {name}: its metadata does not state a workgroup size; "
            "give it as workgroup=(x, y, z)"
        )
    if given is not None and size != list(given):
        raise CodeObjectError(f"kernel {name}: workgroup size {given}, its metadata has {size}")
    if not (isinstance(size, list) and len(size) == 3):
        raise CodeObjectError(f"kernel {name}: workgroup size {size!r}, wanted three numbers")
    x, y, z = (item if isinstance(item, int) else 0 for item in size)
    if min(x, y, z) < 1 or x * y * z > 1024:
        raise CodeObjectError(f"kernel {name}: workgroup size {size}, wanted 1 to 1024 work items")
    return x, y, z
