"""Runs the host program of an artifact: its module, its bytecode, and a simulated HAL device."""
