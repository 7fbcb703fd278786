"""Reads code objects: kernels, metadata, instruction encodings, debug lines, disassembly."""
