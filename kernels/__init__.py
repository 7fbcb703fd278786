"""The kernel language: kernels, their schedules, their text, a numpy interpreter, and lowering to
MLIR."""
