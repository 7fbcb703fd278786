"""Semantics of instructions as operations on arrays, one file per family."""
