"""Attention over a cache on CPUs: one kernel body made of pieces."""
