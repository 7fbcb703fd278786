"""CPU kernels: contractions on packed panels of weights, quantization, and recurrences."""
