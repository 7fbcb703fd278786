"""Recurrences over the rows of several runs: what kernels for CPUs and GPUs share."""
