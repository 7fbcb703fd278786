"""Attention over pages on CPUs: one kernel, softmax as the keys go by."""
