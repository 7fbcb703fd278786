"""Paged attention on CPUs: one kernel with online softmax."""
