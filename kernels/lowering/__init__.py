"""Kernels as MLIR: index arithmetic, the nest, tile registers."""
