"""Quantize blocks of floats to MX elements and scales on CPUs."""
