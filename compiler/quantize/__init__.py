"""Checkpoints to MX: from plain weights to elements and scales, file by file."""
