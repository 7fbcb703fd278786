"""StableHLO, as JAX exports it, to operations on tensors."""
