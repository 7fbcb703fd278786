"""Kernel bodies for AMD GPUs, built from small pieces with the MLIR bindings."""
