"""Reads assembly text for gfx950, compiled or hand-written, as kernels, without an assembler."""
