"""Products of floats by plain weights of 16 bits, on matrix instructions."""
