"""Weights to one archive: planned, reordered, hashed and written by streaming."""
