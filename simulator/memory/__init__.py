"""What instructions read and write: buffers, flat and scalar memory, LDS, atomics."""
