"""Kernel bodies that the lowering passes emit, from small pieces."""
