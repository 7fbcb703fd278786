"""Quantization of checkpoints to MX formats, file by file."""
