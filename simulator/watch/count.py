"""Counts of an execution: instructions by class, bytes moved, LDS bank conflicts, cycles.

Cycles are a lower bound: the time that the busiest SIMD would need for one class of instructions if
nothing else delayed it, from rates that AMD publishes. They rank kernels; they do not predict time.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.numbers import FORMATS
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.signatures import matrix_shape, sparse_shape
from mxc.simulator.run.state import Waves
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.observe import Observer

#: LDS banks of 4 bytes. Source: the bank count of gfx950 in IREE's target table.
BANKS = 64
#: Cycles of a matrix instruction on its matrix core, by rows and blocks; doubled where an operand
#: of an f8f6f4 form has 8 bits. Source: AMD CDNA4 ISA, tables 28 and 33.
MATRIX_CYCLES = {(16, 1): 16, (32, 1): 32, (32, 2): 64, (16, 4): 32, (4, 16): 8}
#: Cycles of float32 and float64 matrix instructions, by rows, blocks and element.
WIDE_CYCLES = {(16, 1, "f32"): 32, (32, 1, "f32"): 64, (16, 1, "f64"): 64, (4, 4, "f64"): 32}
#: Cycles of a vector instruction: 64 lanes on a SIMD of 16. Source: CDNA3 ISA, chapter 3.
VECTOR_CYCLES = 4
#: Bytes that LDS delivers to a compute unit in a cycle. Source: CDNA3 white paper.
LDS_BYTES = 128
#: Bytes of a line of the L1 of vector loads. Source: CDNA3 white paper.
LINE = 128
#: Adjacent lanes whose loads from one line are one request. Source: ROCm Compute Profiler, "vL1D":
#: a load of a wave is 16 requests if it is coalesced, and up to 64.
_TOGETHER = 4
_SIMDS = 4
_SLOW = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_SCALAR = ("SOP1", "SOP2", "SOPC", "SOPK")


@dataclass
class Counts:
    """Counts of a run, over all waves.

    instructions: numbers of executed instructions, by class. memory_read, memory_written: bytes
    that lanes access in buffers. requests: L1 requests of vector loads, one for each line from
    which four adjacent lanes load. lds_read, lds_written: bytes in LDS. bank_conflicts: extra
    passes over the banks. matrix_cycles, vector_cycles, lds_cycles: lower bounds in cycles; the
    first two are cycles of one SIMD if waves are spread evenly.
    """

    waves: int = 0
    instructions: dict[str, int] = field(default_factory=dict)
    memory_read: int = 0
    requests: int = 0
    memory_written: int = 0
    lds_read: int = 0
    lds_written: int = 0
    bank_conflicts: int = 0
    matrix_cycles: int = 0
    vector_cycles: int = 0
    lds_cycles: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return asdict(self)


def class_of(i: Instruction) -> str:
    """Return the class under which an instruction is counted."""
    if "mfma" in i.name or "smfmac" in i.name:
        return "matrix"
    if i.name == "s_barrier":
        return "barrier"
    if i.name == "s_waitcnt":
        return "wait"
    if i.encoding == "SOPP":
        return "control"
    if i.encoding in _SCALAR:
        return "scalar"
    if i.encoding == "SMEM":
        return "scalar memory"
    if i.encoding == "DS":
        return "lds"
    if i.name.startswith("scratch_"):
        return "scratch"
    if i.encoding in ("MUBUF", "FLAT"):
        return "memory"
    return "conversion" if "cvt" in i.name else "vector"


def matrix_cycles(i: Instruction) -> int:
    """Return the cycles of a matrix instruction on its matrix core; 0 for other instructions."""
    if sparse := sparse_shape(i.name):
        return MATRIX_CYCLES[sparse[0], 1]
    shape = matrix_shape(i.name)
    if shape is None:
        return 0
    rows, _, _, blocks, element = shape
    if element == "f8f6f4":
        wide = any(FORMATS[i.has(side)] in ("fp8", "bf8") for side in ("cbsz", "blgp"))
        return MATRIX_CYCLES[rows, 1] * (1 + wide)
    return WIDE_CYCLES.get((rows, blocks, element)) or MATRIX_CYCLES.get((rows, blocks), 0)


class Counter(Observer):
    """Counts one run or several consecutive runs; `counts`: the totals."""

    def __init__(self) -> None:
        """Start with all counts 0."""
        self.counts = Counts()
        self._blocks: dict[tuple[str, int], tuple[Tally[str], int, int]] = {}

    def start(self, w: Waves, program: TranslatedKernel) -> None:
        """Count the waves of a batch of workgroups."""
        self._program = program
        self.counts.waves += w.count

    def block(self, w: Waves, first: int, count: int) -> None:
        """Count the instructions of a basic block for the waves that execute it."""
        key = (self._program.kernel.name, first)
        if key not in self._blocks:
            body = self._program.instructions[first : first + count]
            classes = Tally(class_of(i) for i in body)
            matrix = sum(map(matrix_cycles, body))
            vector = classes["vector"] + classes["conversion"]
            slow = sum(i.name.startswith(_SLOW) for i in body)
            self._blocks[key] = (classes, matrix, VECTOR_CYCLES * (vector + 3 * slow))
        classes, matrix, vector = self._blocks[key]
        waves = w.count if w.active is None else int(np.count_nonzero(w.active))
        for name, number in classes.items():
            self.counts.instructions[name] = self.counts.instructions.get(name, 0) + number * waves
        self.counts.matrix_cycles += matrix * -(-waves // _SIMDS)
        self.counts.vector_cycles += vector * -(-waves // _SIMDS)

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """Count a scalar load."""
        waves = w.count if w.active is None else int(np.count_nonzero(w.active))
        self.counts.memory_read += size * waves

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """Count a vector memory access."""
        number = int(np.prod(w.shape)) if lanes is None else int(np.count_nonzero(lanes))
        if store:
            self.counts.memory_written += number * size
        else:
            self.counts.memory_read += number * size
            self.counts.requests += _requests(np.broadcast_to(address, w.shape), lanes)

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """Count an LDS access: bytes, and bank conflicts among lanes that access together.

        As many lanes access together as fill the banks: 64 for 4 bytes per lane, 16 for 16 bytes.
        """
        self._local(w, place, size, store=stored is not None)

    def _local(self, w: Waves, place: Array, size: int, *, store: bool) -> None:
        number = int(np.count_nonzero(w.lanes)) * size
        if store:
            self.counts.lds_written += number
        else:
            self.counts.lds_read += number
        words = max(1, size // 4)
        together = BANKS // words
        first = np.where(w.lanes, place >> 2, -1).reshape(-1, together)
        dwords = first[..., None] + np.where(first[..., None] < 0, 0, np.arange(words))
        dwords = dwords.reshape(len(first), -1)
        passes = _passes(dwords)
        self.counts.bank_conflicts += int((passes - 1).clip(0).sum())
        self.counts.lds_cycles += int(passes.sum()) * BANKS * 4 // LDS_BYTES

    def local_atomic(self, w: Waves, i: Instruction, place: Array, size: int) -> None:
        """Count an LDS atomic, which reads and writes in one pass over the banks."""
        self._local(w, place, size, store=True)
        self.counts.lds_read += int(np.count_nonzero(w.lanes)) * size


def _requests(address: Array, lanes: Array | None) -> int:
    """Return the number of requests: for each four adjacent lanes, the lines they load from."""
    lines = address // LINE if lanes is None else np.where(lanes, address // LINE, -1)
    ordered = np.sort(lines.reshape(-1, _TOGETHER), axis=1)
    new = ordered[:, 1:] > ordered[:, :-1]
    return int(np.count_nonzero(ordered[:, 0] >= 0) + np.count_nonzero(new))


def _passes(dwords: Array) -> Array:
    """Return for each row the largest number of distinct dwords in a bank; -1 is no access."""
    ordered = np.sort(dwords, axis=1)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    new &= ordered >= 0
    rows = np.broadcast_to(np.arange(len(ordered))[:, None], ordered.shape)
    table = np.zeros((len(ordered), BANKS), np.int64)
    np.add.at(table, (rows[new], ordered[new] % BANKS), 1)
    return np.asarray(table.max(axis=1))
