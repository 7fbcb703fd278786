"""Rates of the compute units of CDNA, from AMD's documents, the compiler's tables, and others.

- issue, transcendental: CDNA4 ISA guide, 2 and 4 (a wave of 64 takes 4 clocks on a SIMD of 16
  lanes; each SIMD is selected every 4th clock and then issues one instruction per kind, from
  different waves: AMD's GCN white paper). Transcendental functions run at a quarter of that rate:
  LLVM SISchedule.td, WriteTrans32.
  Conversions are taken to run at the full rate, an assumption: WriteFloatCvt there has a quarter of
  it. docs/gpu-quality.md has what depends on this.
- matrix_start: no vector instruction runs beside the first two passes of a matrix instruction
  (llvm-project pull request 184084).
- lds_bytes_per_clock: CDNA4 ISA guide, 11.1: 32 reads of 32 bits at once. The same chapter has 64
  banks, and microbenchmarks of gfx950 get 180 to 210 bytes, so this figure is a safe one.
- lds_latency: LLVM SISchedule.td, WriteLDS ("can be between 2 and 64").
- memory_bytes_per_clock: ROCm Compute Profiler, vector L1 cache: 64 bytes per clock and unit.
- memory_latency: the latency of loads on busy gfx950 and gfx942 is about 1000 clocks (public thread
  traces); LLVM has 80 for a hit without load. Models are run from 500 to 3000.
- lds_queue, memory_queue, barrier: assumptions; a share changes by less than 0.03 between half
  and twice of them for the kernels in docs/gpu-quality.md.
"""

from mxc.targets.compute_unit import PipeRates

CDNA = PipeRates(
    issue=4,
    transcendental=16,
    matrix_start=8,
    lds_bytes_per_clock=128,
    lds_latency=64,
    lds_queue=64,
    memory_bytes_per_clock=64,
    memory_latency=1000,
    memory_queue=128,
    barrier=16,
)
