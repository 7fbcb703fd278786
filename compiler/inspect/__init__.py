"""Listing, statistics and comparison of checkpoints, archives and artifacts."""
