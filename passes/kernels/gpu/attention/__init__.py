"""Attention over a cache on gfx950: scores, softmax and values in the registers of one wave."""
