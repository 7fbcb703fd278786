"""Kernels that the lowering passes emit, and what these passes share."""
