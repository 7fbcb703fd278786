"""Readers of checkpoints, one for each way in which checkpoints are written."""
