"""Conversion of checkpoints between dialects without changing a value."""
