"""Translates kernels to Python functions over the registers of all waves, and executes them."""
