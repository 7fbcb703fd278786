"""Random checkpoints, and headers without data, for the demo, the tests and the benchmarks."""
