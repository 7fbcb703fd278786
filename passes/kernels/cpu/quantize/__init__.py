"""Blocks of floats to MX elements and scales on CPUs: how a block is rounded, and who does it."""
