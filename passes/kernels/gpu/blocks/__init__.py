"""Kernels of MX blocks alone: floats to blocks, blocks to floats, and along another axis."""
