"""Decodes memory instructions: DS, FLAT (global, scratch) and MUBUF."""

from __future__ import annotations

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.code.words import OPCODES, Word
from mxc.simulator.compute.signatures import has_two_addresses, local_data, memory_widths


def read_ds(word: Word, encoding: str, address: int) -> Instruction:
    """Decode an LDS instruction: the address, then the data."""
    word.size = 8
    name = OPCODES["DS"][word(24, 17)]
    bank = "a" if word(25, 25) else "v"
    loaded, stored = memory_widths(name)
    results = (Operand(bank, word(63, 56), loaded),) if loaded else ()
    data = [Operand(bank, word(47, 40), stored)] if stored else []
    if local_data(name) == 2:
        data.append(Operand(bank, word(55, 48), stored))
    modifiers = {"gds": word(16, 16)}
    if has_two_addresses(name):
        modifiers |= {"offset0": word(7, 0), "offset1": word(15, 8)}
    else:
        modifiers |= {"offset": word(15, 0)}
    operands = (Operand("v", word(39, 32)), *data)
    if name == "ds_swizzle_b32":
        operands = (Operand("v", word(39, 32)),)
    if "addtid" in name:
        # The address is the lane's own and has no operand.
        operands = tuple(data)
    return _memory(name, encoding, address, word, results, operands, modifiers)


def read_flat(word: Word, encoding: str, address: int) -> Instruction:
    """Decode a flat, global or scratch instruction: vector address, data, scalar address."""
    word.size = 8
    segment = ("FLAT", "SCRATCH", "GLOBAL")[word(15, 14)] if word(15, 14) < 3 else "reserved"
    name = OPCODES[segment][word(24, 18)]
    bank = "a" if word(55, 55) else "v"
    loaded, stored = memory_widths(name)
    offset = word(12, 0)
    offset -= (offset & 0x1000) << 1
    saddr = word(54, 48)
    scalar = (
        Operand("off", 0)
        if saddr == 0x7F
        else Operand("s", saddr, 1 if segment == "SCRATCH" else 2)
    )
    wide = segment == "FLAT" or (segment == "GLOBAL" and scalar.bank == "off")
    vector = Operand("v", word(39, 32), 2 if wide else 1)
    if segment == "SCRATCH" and not word(13, 13):
        vector = Operand("off", 0)
    modifiers = {"offset": offset, "sc0": word(16, 16), "nt": word(17, 17), "sc1": word(25, 25)}
    atomic = "atomic" in name
    returns = loaded and (not atomic or word(16, 16))
    results = (Operand(bank, word(63, 56), loaded),) if returns else ()
    data = (Operand(bank, word(47, 40), stored),) if stored else ()
    # Loads and stores name the address first, stores then their data.
    operands = (vector, *data) if segment == "FLAT" else (vector, *data, scalar)
    return _memory(name, encoding, address, word, results, operands, modifiers)


def read_mubuf(word: Word, encoding: str, address: int) -> Instruction:
    """Decode a buffer instruction: data, vector address, resource, scalar offset."""
    word.size = 8
    name = OPCODES["MUBUF"][word(24, 18)]
    bank = "a" if word(55, 55) else "v"
    loaded, stored = memory_widths(name)
    to_lds = word(16, 16)
    vector = Operand("v", word(39, 32), 2 if word(12, 12) and word(13, 13) else 1)
    if not word(12, 12) and not word(13, 13):
        vector = Operand("off", 0)
    resource = Operand("s", word(52, 48) << 2, 4)
    scalar = word.source(word(63, 56), 8)
    modifiers = {
        "offset": word(11, 0),
        "offen": word(12, 12),
        "idxen": word(13, 13),
        "sc0": word(14, 14),
        "sc1": word(15, 15),
        "lds": to_lds,
        "nt": word(17, 17),
    }
    if "wbl2" in name or "inv" in name:
        return _memory(name, encoding, address, word, (), (), modifiers)
    returns = loaded and not to_lds and ("atomic" not in name or word(14, 14))
    results = (Operand(bank, word(47, 40), loaded),) if returns else ()
    data = (Operand(bank, word(47, 40), stored),) if stored else ()
    operands = (*data, vector, resource, scalar)
    return _memory(name, encoding, address, word, results, operands, modifiers)


def _memory(
    name: str,
    encoding: str,
    address: int,
    word: Word,
    results: tuple[Operand, ...],
    operands: tuple[Operand, ...],
    modifiers: dict[str, int],
) -> Instruction:
    kept = {key: value for key, value in modifiers.items() if value}
    return Instruction(name, encoding, address, word.size, results, operands, kept)
