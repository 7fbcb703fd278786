"""Lowering of scheduled kernels to MLIR: index arithmetic, the loop nest, tile and vector
registers."""
