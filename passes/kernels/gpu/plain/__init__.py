"""Kernels for products of computed tensors of any sizes and layouts, and for convolutions."""
