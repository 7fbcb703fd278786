"""Executes compiled gfx950 and gfx942 kernels on any machine (docs/simulator.md)."""
