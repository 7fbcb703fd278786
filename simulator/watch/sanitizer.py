"""Finds errors that hardware does not report: races, missing waits, reads of unwritten data.

Findings name the instruction. Kinds of findings, and the rule of each:

wait       an instruction uses a register of a load that no s_waitcnt has waited for (vmcnt counts
           vector memory in order; lgkmcnt counts LDS in order but scalar loads in any order, so
           that only lgkmcnt(0) waits for these)
race       two waves of a workgroup access the same LDS byte, at least one writes, and the write was
           not both waited for by its wave and followed by a barrier; or another wave has read the
           byte since the last barrier. A write of the value that the byte has is not a race. Also:
           two waves of a dispatch access one byte of global memory, at least one writes, and
           neither a barrier of their workgroup nor atomic operations and fences order them
           (global_memory.py)
dma        a wave reads LDS that its own load to LDS fills and has not waited for
undefined  a value that depends on an unwritten register is stored, is used as an address, or
           decides a branch or the active lanes (copying and masking undefined values, as compilers
           do, is allowed), per lane (definedness.py); or an unwritten byte of LDS is read
bounds     LDS beyond the workgroup's allocation (addresses outside of every buffer are an error of
           the simulator itself, with or without a sanitizer)
alignment  an LDS or scratch address that is not a multiple of 4 bytes, or of the access where it is
           smaller; global memory only with `Sanitizer(unaligned=True)`, as ROCm lets kernels access
           it unaligned (LLVM: unaligned-access-mode)
barrier    waves of a workgroup wait at different barriers
hazard     fewer wait states between two instructions than the hardware needs without an interlock
           (hazards.py: results of matrix instructions, scalar registers that vector instructions
           write, and others)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.text import text, waits
from mxc.simulator.compute.operations import Array
from mxc.simulator.memory.spaces import Memory
from mxc.simulator.run.state import LANES, Waves
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.definedness import Definedness
from mxc.simulator.watch.global_memory import GlobalMemory
from mxc.simulator.watch.hazards import hazards
from mxc.simulator.watch.observe import Observer
from mxc.simulator.watch.shadow import Shadow
from mxc.simulator.watch.uses import LOCAL, SCALAR, VECTOR, Register, RegisterUse, use_of


@dataclass(frozen=True)
class Finding:
    """A finding. `kind`: see the module. `place`: kernel, address and instruction."""

    kind: str
    place: str
    detail: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.kind}: {self.place}: {self.detail}"


class _Count:
    """One counter of each wave: numbers of issued and of completed operations."""

    def __init__(self, waves: int) -> None:
        self.issued: Array = np.zeros(waves, np.int64)
        self.done: Array = np.zeros(waves, np.int64)

    def issue(self, active: Array) -> Array:
        self.issued = self.issued + active
        return self.issued

    def wait(self, left: int, active: Array) -> None:
        reached = np.maximum(self.done, self.issued - left)
        self.done = np.where(active, reached, self.done)


#: Effects of fence instructions with sc1, for all waves of the device.
_FENCES = {"buffer_wbl2": GlobalMemory.written_back, "buffer_inv": GlobalMemory.acquired}
#: Caches by program and address, shared by all sanitizers.
_USES: WeakKeyDictionary[TranslatedKernel, dict[int, RegisterUse]] = WeakKeyDictionary()
_HAZARDS: WeakKeyDictionary[TranslatedKernel, dict[int, list[str]]] = WeakKeyDictionary()


class Sanitizer(Observer):
    """Checks one run of a kernel, or several consecutive runs.

    `findings`: the first finding of each kind at each instruction. `counts`: the number of
    occurrences, by kind and place.
    """

    every_instruction = True

    def __init__(self, *, unaligned: bool = False) -> None:
        """unaligned: report unaligned accesses to global memory too."""
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self._unaligned = unaligned
        self._global = GlobalMemory(Memory())

    def start(self, w: Waves, program: TranslatedKernel) -> None:
        """Begin a batch of workgroups."""
        self._program = program
        self._uses = _USES.setdefault(program, {})
        if program not in _HAZARDS:
            _HAZARDS[program] = hazards(program.instructions, program.kernel.processor)
        self._hazards = _HAZARDS[program]
        self._everyone: Array = np.ones(w.count, bool)
        self._active = self._everyone
        self._counts = {name: _Count(w.count) for name in (VECTOR, LOCAL, SCALAR)}
        self._pending: dict[Register, list[tuple[str, Array]]] = {}
        self._shadow = Shadow(w)
        if self._global.memory is not w.memory:
            self._global = GlobalMemory(w.memory)
        self._global.start(w)
        self._stores: list[tuple[str, Array, Array, int, int]] = []
        self._registers = Definedness(w, program)

    def before(self, w: Waves, i: Instruction) -> None:
        """Check the registers that an instruction reads, and its wait states."""
        use = self._uses.get(i.address)
        if use is None:
            use = self._uses[i.address] = use_of(i)
        self._active = self._everyone if w.active is None else w.active[:, 0]
        if self._pending:
            for register in self._pending.keys() & (use.reads | use.writes):
                if register in use.reads or not self._in_order(use, register):
                    self._check_pending(i, register)
        for detail in self._hazards.get(i.address, ()):
            self._report("hazard", i, detail)
        for detail in self._registers.before(w, i, use):
            self._report("undefined", i, detail)
        if i.name == "s_waitcnt":
            self._wait(i, w)
        elif i.name in _FENCES and i.has("sc1"):
            _FENCES[i.name](self._global, self._active)

    def after(self, w: Waves, i: Instruction) -> None:
        """Record the registers that an instruction wrote, and its outstanding operations."""
        use = self._uses[i.address]
        self._registers.after(w, i, use)
        if not use.counters:
            return
        issued = [(name, self._counts[name].issue(self._active)) for name in use.counters]
        if use.loads:
            # Waves that do not execute keep their own outstanding loads.
            mine = [(name, np.where(self._active, sequence, 0)) for name, sequence in issued]
            for register in use.writes:
                theirs = [
                    (name, np.where(self._active, 0, sequence))
                    for name, sequence in self._pending.get(register, [])
                ]
                self._pending[register] = [each for each in theirs if each[1].any()] + mine

    def _in_order(self, use: RegisterUse, register: Register) -> bool:
        """Whether a load writes a register after all pending loads of that register.

        Loads from memory return in order, and so do loads from LDS (CDNA4 ISA guide, 4.4).
        """
        names = {name for name, _ in self._pending[register]}
        return use.loads and names == set(use.counters) and names in ({VECTOR}, {LOCAL})

    def _check_pending(self, i: Instruction, register: Register) -> None:
        late = [sequence > self._counts[name].done for name, sequence in self._pending[register]]
        if any((self._active & each).any() for each in late):
            self._report("wait", i, f"{_name(register)} is loaded and no s_waitcnt waited for it")
            del self._pending[register]

    def _wait(self, i: Instruction, w: Waves) -> None:
        vector, _, local = waits(i.has("simm16"))
        counts = self._counts
        counts[VECTOR].wait(vector, self._active)
        if vector == 0:
            self._global.waited(self._active)
        # If scalar loads are among the outstanding operations, even more LDS operations are done.
        counts[LOCAL].wait(local, self._active)
        if local == 0:
            counts[SCALAR].wait(0, self._active)
        late: dict[int, bool] = {}  # by id: the registers of a load share an array
        for each in self._pending.values():
            for name, sequence in each:
                if id(sequence) not in late:
                    late[id(sequence)] = bool(np.count_nonzero(sequence > counts[name].done))
        self._pending = {
            register: issued
            for register, issued in self._pending.items()
            if any(late[id(sequence)] for _, sequence in issued)
        }
        left = []
        for name, sequence, places, size, entry in self._stores:
            done = (sequence <= counts[name].done) & (sequence > 0)
            if done.any():
                self._shadow.complete(w, places, size, done, entry)
            if not done.all():
                left.append((name, np.where(done, 0, sequence), places, size, entry))
        self._stores = [each for each in left if each[1].any()]

    # Memory

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """Check the alignment of a vector memory access, if requested."""
        if not self._unaligned:
            return
        unit = min(size, 4) - 1
        off = (address & unit) != 0
        if (
            off.any()
            and (np.broadcast_to(off, w.shape) & (w.lanes if lanes is None else lanes)).any()
        ):
            self._report("alignment", i, f"an address is not a multiple of {unit + 1} bytes")

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """Check a scalar load for races."""
        waves = np.broadcast_to(self._active[:, None], (w.count, 1))
        lanes = np.pad(waves, ((0, 0), (0, LANES - 1)))
        self._race(w, self._global.load(w, address, lanes, size, atomic=False))

    def load(self, w: Waves, address: Array, lanes: Array | None, size: int) -> None:
        """Check a load for races."""
        self._race(w, self._global.load(w, address, lanes, size, atomic=self._is_atomic(w)))

    def store(
        self, w: Waves, address: Array, lanes: Array | None, values: Array, size: int
    ) -> None:
        """Check a store for races."""
        atomic = self._is_atomic(w)
        self._race(w, self._global.store(w, address, lanes, values, size, atomic=atomic))

    def change(self, w: Waves, address: Array, lanes: Array, size: int) -> None:
        """Check an atomic for races."""
        self._race(w, self._global.change(w, address, lanes, size))

    def _is_atomic(self, w: Waves) -> bool:
        """Whether the executing load or store has a scope beyond the wave."""
        i = self._program.instructions[w.at]
        return bool(i.has("sc0") or i.has("sc1"))

    def _race(self, w: Waves, found: Iterator[str]) -> None:
        for detail in found:
            self._report("race", self._program.instructions[w.at], detail)

    def scratch(self, w: Waves, i: Instruction, place: Array, size: int, store: bool) -> None:
        """Check the alignment of a scratch access."""
        unit = min(size, 4) - 1
        if ((place & unit != 0) & w.lanes).any():
            self._report("alignment", i, f"a scratch offset is not a multiple of {unit + 1} bytes")

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """Check races, bounds and alignment of an LDS access."""
        unit = min(size, 4) - 1
        lanes: Array = w.lanes
        outside = lanes & ((place < 0) | (place + size > w.lds_size))
        if outside.any():
            first = int(place[outside][0])
            self._report(
                "bounds", i, f"{size} bytes at {first} of {w.lds_size} that the workgroup has"
            )
            lanes = lanes & ~outside
        if ((place & unit != 0) & lanes).any():
            self._report("alignment", i, f"an LDS address is not a multiple of {unit + 1} bytes")
        if not lanes.any():
            return
        if stored is None:
            found = self._shadow.load(w, place, lanes, size)
        else:
            found = self._shadow.store(w, place, lanes, size, stored, direct=i.encoding != "DS")
        for kind, detail in found:
            self._report(kind, i, detail)
        if stored is not None:
            name = LOCAL if i.encoding == "DS" else VECTOR
            sequence = self._counts[name].issued + self._active
            places = np.where(lanes, place + w.lds_base, -1)
            sequence = np.where(self._active, sequence, 0)
            self._stores.append((name, sequence, places, size, self._shadow.latest))

    def barrier(self, w: Waves, waiting: Array, places: Array) -> None:
        """Check that a workgroup's waves wait at the same barrier; begin a new epoch."""
        groups = w.workgroup[waiting]
        at = places[waiting]
        low = np.full(int(w.workgroup.max()) + 1, np.iinfo(np.int64).max)
        high = np.full_like(low, -1)
        np.minimum.at(low, groups, at)
        np.maximum.at(high, groups, at)
        if ((low < high) & (high >= 0)).any():
            index = int(high[(low < high) & (high >= 0)][0]) - 1
            i = self._program.instructions[index]
            self._report("barrier", i, "waves of a workgroup wait at different barriers")
        self._shadow.barrier(np.unique(groups))
        self._global.barrier(np.unique(groups))

    def _report(self, kind: str, i: Instruction, detail: str) -> None:
        place = f"{self._program.kernel.location(i.address)}: {text(i)}"
        if not self.counts[kind, place]:
            self.findings.append(Finding(kind, place, detail))
        self.counts[kind, place] += 1


def _name(register: Register) -> str:
    return f"{register[0]}{register[1]}"
