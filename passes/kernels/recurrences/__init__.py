"""The parts of recurrences over the rows of several runs that CPU and GPU kernels share."""
