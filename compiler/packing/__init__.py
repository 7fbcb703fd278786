"""Packing of weights into archives: planned, reordered, hashed and written in a stream."""
