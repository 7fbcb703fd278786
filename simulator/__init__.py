"""Execute compiled gfx950 kernels on any machine, one instruction at a time (docs/simulator.md)."""
