"""Products whose operands go through a ring of stages in shared memory: scaled, or of floats."""
