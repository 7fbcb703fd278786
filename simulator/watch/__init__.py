"""Observers of an execution: the sanitizer, counters, traces."""
