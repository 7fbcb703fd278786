"""Tracks which lanes of which registers are defined, and where undefined values matter.

A vector register is defined or undefined per lane. The result of most instructions is undefined in
the lanes where an operand is undefined. Other instructions propagate differently:

- DPP, permutes and swaps: from the lane that a lane reads;
- v_cndmask: from the operand that a lane selects;
- products of matrices: along the rows of one side and the columns of the other.

A scalar is defined or undefined as a whole. A lane mask is defined where all active lanes from
which it was computed are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

import numpy as np

from mxc.simulator.code.instruction import EXEC, Instruction
from mxc.simulator.compute.lanes import dpp_enabled, dpp_lanes, swizzle_lanes
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.signatures import matrix_shape, sparse_shape
from mxc.simulator.run.state import LANES, Waves
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.uses import Register, RegisterUse

_ALWAYS = frozenset(("s", n) for n in (EXEC, EXEC + 1))
#: Instructions that move scalars to and from lanes of vector registers.
_WRITE_LANE, _READ_LANE, _READ_FIRST = "v_writelane_b32", "v_readlane_b32", "v_readfirstlane_b32"
_LANE = np.arange(LANES)
_NOWHERE: Array = np.zeros((1, 1), bool)
_MOVES = ("ds_bpermute_b32", "ds_swizzle_b32")
_SWAPS = {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}
#: 64-bit sums of a product and an addend.
_MULTIPLY_ADD = ("v_mad_u64_u32", "v_mad_i64_i32")


class Definedness:
    """The definedness of all registers of a batch of waves."""

    def __init__(self, w: Waves, program: TranslatedKernel) -> None:
        """Start in the initial state of a wave."""
        d = program.kernel.descriptor
        scalars = d.user_sgprs + sum(d.workgroup_ids)
        given = {("s", n) for n in range(scalars) if n not in d.undefined_sgprs}
        #: Registers that are defined in all lanes; for other registers (`_partly`), the lanes in
        #: which they are defined, bool [waves, 1 or 64]. Registers in neither are undefined.
        self._full: set[Register] = given | {("v", 0)} | _ALWAYS
        self._partly: dict[Register, Array] = {}
        #: Lanes without a work item. A write by active lanes defines them too.
        self._absent: Array = ~w.lanes
        self._nowhere: Array = np.zeros((w.count, 1), bool)
        self._look(w)
        #: Where the results of the executing instruction are undefined, None for nowhere;
        #: `_results` has the registers for which this differs.
        self._result: Array | None = None
        self._results: dict[Register, Array] = {}

    def _look(self, w: Waves) -> None:
        """Keep the executing waves, their active lanes, and the lanes that a write defines."""
        self._active, self._lanes, self._everywhere = w.active, w.lanes, w.full
        self._waves: Array = self._nowhere | True if w.active is None else w.active
        self._written: Array = w.lanes | self._absent & self._waves

    def before(self, w: Waves, i: Instruction, use: RegisterUse) -> Iterator[str]:
        """Yield findings about the registers that an instruction reads."""
        if w.lanes is not self._lanes or w.active is not self._active:
            self._look(w)
        self._everywhere = w.full
        self._result = None
        if self._results:
            self._results = {}
        if use.reads <= self._full:
            return
        # A register with scalars in some lanes is spilled as a whole, so other lanes may be
        # undefined.
        spills = i.name.startswith("scratch_store")
        bad: dict[Register, Array] = {}
        for register in sorted(use.reads - self._full):
            known = self._partly.get(register)
            # An instruction that computes lane by lane reads only the lanes that it writes.
            active = self._written if use.lanewise and register[0] in "va" else self._waves
            if known is active:
                continue
            here = active if known is None else active > known  # active & ~known
            if register in use.decides:
                used = here.all(axis=1, keepdims=True) & w.lanes if spills else here & w.lanes
                if used.any():
                    yield f"{register[0]}{register[1]} comes from what nobody wrote"
                    self._full.add(register)
                    continue
            if np.count_nonzero(here):  # on small arrays, ten times as fast as `any`
                bad[register] = here
        if bad:
            self._result = self._reached(w, i, bad)

    def _reached(self, w: Waves, i: Instruction, bad: dict[Register, Array]) -> Array:
        """Return where results are undefined. bad: where the registers that are read are."""
        if i.name in (_READ_LANE, _READ_FIRST):
            wide = np.broadcast_to(_of(i, 0, bad), w.shape)
            others = _of(i, 1, bad) if len(i.operands) > 1 else self._nowhere
            return np.asarray(np.take_along_axis(wide, self._lane(w, i), 1) | others)
        if i.name.startswith("v_cndmask") and not (i.has("dpp") or i.has("sdwa")):
            chosen = w.mask(i.operands[2].index)
            reached = np.where(chosen, _of(i, 1, bad), _of(i, 0, bad))
            return np.asarray(reached | _of(i, 2, bad))
        if i.name in _SWAPS:
            return self._swapped(i, _SWAPS[i.name], w, bad)
        if "mfma" in i.name or "smfmac" in i.name:
            return self._multiplied(w, i, bad)
        if i.name in _MULTIPLY_ADD and i.operands[2].is_register:
            # The lower half does not depend on the upper half of the addend, which LLVM leaves
            # undefined where it needs only the lower half.
            addend = (i.operands[2].bank, i.operands[2].index + 1)
            rest = [each for register, each in bad.items() if register != addend]
            target = (i.results[0].bank, i.results[0].index)
            self._results[target] = _any(rest, self._nowhere)
            return _any(bad.values(), self._nowhere)
        if i.name in _MOVES or i.has("dpp"):
            n = i.name == "ds_bpermute_b32"
            moved = set(i.operands[n].registers())
            bad = {r: self._moved(w, i, at) if r in moved else at for r, at in bad.items()}
        return _any(bad.values(), self._nowhere)

    def _moved(self, w: Waves, i: Instruction, bad: Array) -> Array:
        """Return where an operand is undefined after its lanes were moved."""
        there = np.broadcast_to(bad, w.shape) & w.lanes
        if i.name == "ds_bpermute_b32":
            address = w.wide(w.v[i.operands[0].index]).astype(np.int64)
            source = (address + i.has("offset")) >> 2 & 63
            return np.asarray(np.take_along_axis(there, source, axis=1))
        if i.name == "ds_swizzle_b32":
            return np.asarray(there[:, swizzle_lanes(i.has("offset"))])
        source, valid = dpp_lanes(i.has("dpp_ctrl"))
        return np.asarray(there[:, source] & valid)

    def _swapped(self, i: Instruction, rows: int, w: Waves, bad: dict[Register, Array]) -> Array:
        first, second = i.results[0].index, i.operands[0].index
        low, other = (_LANE // rows) % 2 == 0, _LANE ^ rows
        a, b = (np.broadcast_to(bad.get(("v", n), self._nowhere), w.shape) for n in (first, second))
        self._results["v", first] = np.where(low, a, b[:, other])
        self._results["v", second] = np.where(low, a[:, other], b)
        return self._nowhere

    def _multiplied(self, w: Waves, i: Instruction, bad: dict[Register, Array]) -> Array:
        """Propagate through a matrix product.

        An undefined element of the first side makes a row undefined, of the second side a column.
        """
        shape = matrix_shape(i.name) or sparse_shape(i.name)
        registers = i.results[0].registers()
        if shape is None or shape[0] not in (16, 32) or len(registers) * LANES != shape[0] ** 2:
            return _any(bad.values(), self._nowhere)
        sparse = "smfmac" in i.name
        # Operands of each side: factors, then scales (after the sums), or indices of a sparse side.
        parts = ((0, 2) if sparse else (0, 3), (1, 4))
        lines = []
        for side in parts:
            here = _any((_of(i, n, bad) for n in side if n < len(i.operands)), self._nowhere)
            wide = np.broadcast_to(here, w.shape).reshape(w.count, -1, shape[0])
            lines.append(np.bitwise_or.reduce(wide, axis=1))
        rows, columns = lines
        sums = (i.results[0] if sparse else i.operands[2]).registers()
        for n, register in enumerate(registers):
            row = 8 * (n // 4) + n % 4 + 4 * (_LANE // shape[0])
            here = rows[:, row] | columns[:, _LANE % shape[0]]
            own = bad.get(sums[n], self._nowhere) if sums else self._nowhere
            self._results[register] = np.asarray(here | own)
        return self._nowhere

    def _lane(self, w: Waves, i: Instruction) -> Array:
        """Return the lane of each wave [waves, 1] that an instruction reads or writes."""
        if i.name == _READ_FIRST:
            first: Array = w.lanes.argmax(axis=1)[:, None]
            return first
        operand = i.operands[1]
        number = w.s[operand.index] if operand.bank == "s" else np.array([[operand.index]])
        return np.broadcast_to(number.astype(np.int64) & 63, (w.count, 1))

    def after(self, w: Waves, i: Instruction, use: RegisterUse) -> None:
        """Record the registers that an instruction wrote."""
        bad, lanes = self._result, self._lanes
        one = i.name == _WRITE_LANE
        if bad is None:
            if self._everywhere and not one and not i.has("dpp"):
                self._full |= use.writes
                return
            if use.writes <= self._full:
                return
        waves = self._waves
        written = waves & (self._lane(w, i) == _LANE) if one else self._written
        if i.has("dpp"):
            written = written & self._enabled(w, i, lanes)
        for register in use.writes:
            here = written if register[0] in "va" else waves
            if register in self._full:
                if bad is None:
                    continue
                known: Array = self._nowhere | True
            else:
                known = self._partly.get(register, self._nowhere)
            if bad is None and not np.count_nonzero(here > known):
                continue
            known = here if known is self._nowhere else known | here
            if bad is not None:
                reached = self._results.get(register, bad)
                if register[0] not in "va":
                    reached = np.bitwise_or.reduce(reached & lanes, axis=1, keepdims=True)
                known = known & ~(reached & here)
            self._full.discard(register)
            self._partly[register] = known
            if known.all():
                self._full.add(register)

    def _enabled(self, w: Waves, i: Instruction, lanes: Array) -> Array:
        """Return the lanes that a DPP instruction may write."""
        keep = dpp_enabled(i.has("row_mask") ^ 15, i.has("bank_mask") ^ 15)[None]
        if i.has("bound_ctrl"):
            return keep
        source, valid = dpp_lanes(i.has("dpp_ctrl"))
        return np.asarray(keep & valid & lanes[:, source])


def _of(i: Instruction, n: int, bad: dict[Register, Array]) -> Array:
    """Return where a register of the n-th operand is undefined."""
    return _any((bad[r] for r in i.operands[n].registers() if r in bad), _NOWHERE)


def _any(parts: Iterable[Array], nowhere: Array) -> Array:
    return reduce(np.bitwise_or, parts, nowhere)
