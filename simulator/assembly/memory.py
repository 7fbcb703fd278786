"""Reads the operands of memory instructions: LDS, flat, global, scratch and buffers."""

from __future__ import annotations

from dataclasses import replace

from mxc.simulator.assembly.written import InstructionText, finish
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.signatures import has_two_addresses, local_data, memory_widths


def _check(w: InstructionText, results: int, wanted: list[str]) -> None:
    if len(w.parts) != results + len(wanted):
        names = ", ".join((["the result"] if results else []) + wanted)
        raise w.read.refuse(
            f"takes {results + len(wanted)} operands ({names}), found {len(w.parts)}"
        )


def _data(w: InstructionText, text: str, width: int) -> Operand:
    """Read a register operand of `width` dwords."""
    found = w.register(text, "va")
    if found.count != width:
        raise w.read.refuse(f"{text} is {found.count} registers, wanted {width}")
    return found


def _only(w: InstructionText, fields: dict[str, int], allowed: tuple[str, ...]) -> dict[str, int]:
    for key in fields:
        if key not in allowed:
            raise w.read.refuse(f"{key} is no modifier of it")
    return fields


def _made(
    w: InstructionText, results: list[Operand], operands: list[Operand], fields: dict[str, int]
) -> Instruction:
    counts = tuple(o.count for o in results), tuple(o.count for o in operands)
    return finish(w, results, operands, fields, counts=counts)


def read_local(w: InstructionText) -> Instruction:
    """Read an LDS instruction: the result, the address, the data."""
    loaded, stored = memory_widths(w.name)
    two = has_two_addresses(w.name)
    data = 0 if w.name == "ds_swizzle_b32" else local_data(w.name)
    # Instructions with addtid have the lane's address, without an operand.
    addresses = int("addtid" not in w.name)
    _check(w, int(loaded > 0), [*["the address"] * addresses, *["data"] * data])
    results = [_data(w, w.parts[0], loaded)] if loaded else []
    rest = w.parts[len(results) :]
    operands = [_data(w, text, 1) for text in rest[:addresses]]
    operands += [_data(w, text, stored) for text in rest[addresses:]]
    allowed = ("offset0", "offset1", "gds") if two else ("offset", "gds")
    return _made(w, results, operands, _only(w, w.plain_fields(), allowed))


def read_flat(w: InstructionText) -> Instruction:
    """Read flat, global and scratch: result, vector address, data, scalar address."""
    loaded, stored = memory_widths(w.name)
    fields = _only(w, w.plain_fields(), ("offset", "sc0", "nt", "sc1"))
    returns = bool(loaded) and ("atomic" not in w.name or bool(fields.get("sc0")))
    flat, scratch = w.name.startswith("flat_"), w.name.startswith("scratch_")
    wanted = ["the address", *["data"] * bool(stored), *["the scalar address"] * (not flat)]
    _check(w, int(returns), wanted)
    results = [_data(w, w.parts[0], loaded)] if returns else []
    rest = w.parts[len(results) :]
    base = Operand("off", 0)
    if not flat:
        base = w.read.register(rest.pop()) or Operand("none", 0)
        if base.bank not in ("s", "off"):
            raise w.read.refuse(f"found {w.parts[-1]}, wanted scalar registers or off")
    wide = not scratch and base.bank == "off"
    if scratch and rest[0] == "off":
        vector = Operand("off", 0)
    else:
        vector = _data(w, rest[0], 2 if wide else 1)
    if base.bank == "s" and base.count != (1 if scratch else 2):
        raise w.read.refuse(f"{w.parts[-1]} is {base.count} registers")
    data = [_data(w, text, stored) for text in rest[1:]]
    operands = [vector, *data] if flat else [vector, *data, base]
    return _made(w, results, operands, fields)


def read_buffer(w: InstructionText) -> Instruction:
    """Read a buffer instruction: result or data, vector address, resource, scalar offset."""
    loaded, stored = memory_widths(w.name)
    allowed = ("offset", "offen", "idxen", "sc0", "sc1", "lds", "nt")
    fields = _only(w, w.plain_fields(), allowed)
    if not w.parts:
        return _made(w, [], [], fields)
    atomic = "atomic" in w.name
    returns = bool(loaded) and not fields.get("lds") and not atomic
    data = [] if returns or not stored else ["data"]
    wanted = [*data, "the vector offset", "the resource", "the scalar offset"]
    _check(w, int(returns), wanted)
    results = [_data(w, w.parts[0], loaded)] if returns else []
    rest = w.parts[len(results) :]
    if atomic and fields.get("sc0"):
        # The old value is returned in the data register, which the text names once.
        place = _data(w, rest[0], stored)
        results = [replace(place, count=loaded)]
    operands = [_data(w, rest.pop(0), stored)] if data else []
    both = fields.get("offen") and fields.get("idxen")
    if fields.get("offen") or fields.get("idxen"):
        operands.append(_data(w, rest[0], 2 if both else 1))
    elif rest[0] == "off":
        operands.append(Operand("off", 0))
    else:
        raise w.read.refuse(f"{rest[0]} needs offen or idxen; without them it is off")
    resource = w.scalar_register(rest[1])
    if resource.count != 4:
        raise w.read.refuse(f"{rest[1]} is {resource.count} registers, wanted 4")
    scalar = w.scalar(rest[2])
    return _made(w, results, [*operands, resource, scalar], fields)
