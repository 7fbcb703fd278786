"""GPU kernels of recurrences over the rows of runs: the delta rule and a short convolution."""
