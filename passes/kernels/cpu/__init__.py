"""CPU kernels of contractions: prepared activations, packed panels of weights, and one inner
loop."""
