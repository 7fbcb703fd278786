"""Contractions with packed weights on CPUs: prepared activations, panels, one inner loop."""
