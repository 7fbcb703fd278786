"""Recurrences over the rows of several runs, on GPUs."""
