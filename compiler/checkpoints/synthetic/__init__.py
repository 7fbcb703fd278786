"""Random and hollow checkpoints for the demo, the tests and the benchmarks."""
