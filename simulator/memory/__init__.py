"""Memory instructions: buffers, flat and scalar memory, LDS, atomics."""
