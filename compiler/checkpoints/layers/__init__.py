"""Shared code of the dialects with one set of tensors per layer: config, layers and their parts."""
