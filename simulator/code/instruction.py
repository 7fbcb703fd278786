"""A decoded instruction and its operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

#: Names of special scalar registers, by number.
NAMED = {
    102: "flat_scratch_lo",
    103: "flat_scratch_hi",
    104: "xnack_mask_lo",
    105: "xnack_mask_hi",
    106: "vcc_lo",
    107: "vcc_hi",
    124: "m0",
    126: "exec_lo",
    127: "exec_hi",
}
VCC, M0, EXEC = 106, 124, 126
#: Operand codes that are neither registers nor constants.
SPECIAL = {
    235: "src_shared_base",
    236: "src_shared_limit",
    237: "src_private_base",
    238: "src_private_limit",
    239: "src_pops_exiting_wave_id",
    251: "src_vccz",
    252: "src_execz",
    253: "src_scc",
    254: "src_lds_direct",
}
#: Inline floating-point constants, by operand code.
INLINE_FLOATS = {
    240: 0.5,
    241: -0.5,
    242: 1.0,
    243: -1.0,
    244: 2.0,
    245: -2.0,
    246: 4.0,
    247: -4.0,
    248: 0.15915494309189532,
}


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: `bank`, `index`, and `count`, the number of registers.

    Banks: s, v, a (scalar, vector, accumulation registers); int (an inline integer); float (an
    inline floating-point constant: the index is its operand code); literal (32 bits); special;
    off (no register).
    """

    bank: str
    index: int
    count: int = 1

    @property
    def is_register(self) -> bool:
        """Whether it names registers."""
        return self.bank in ("s", "v", "a")

    def registers(self) -> tuple[tuple[str, int], ...]:
        """Return every register that it names, as (bank, index)."""
        return _registers(self.bank, self.index, self.count) if self.is_register else ()


@cache
def _registers(bank: str, index: int, count: int) -> tuple[tuple[str, int], ...]:
    return tuple((bank, index + i) for i in range(count))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: results, operands, modifiers, in the order of LLVM's assembly.

    `address` and `size` are in bytes; `encoding` is the name of its format; `modifiers` holds
    the fields that are not operands, without those at their default.
    """

    name: str
    encoding: str
    address: int
    size: int
    results: tuple[Operand, ...] = ()
    operands: tuple[Operand, ...] = ()
    modifiers: dict[str, int] = field(default_factory=dict)

    def has(self, modifier: str) -> int:
        """Return a modifier's value, 0 where it is not given."""
        return self.modifiers.get(modifier, 0)
