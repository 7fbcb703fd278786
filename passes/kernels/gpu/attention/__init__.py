"""Attention over a cache on GPUs: scores, softmax and values in the registers of one wave."""
