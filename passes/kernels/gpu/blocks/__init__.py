"""Kernels that only convert: floats to MX blocks, also along another axis, and blocks to floats."""
