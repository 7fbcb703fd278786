"""Kernels as Python over the registers of all waves, and their execution."""
