"""Checkpoints from one dialect to another, every value kept."""
