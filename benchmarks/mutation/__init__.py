"""Mutants: small errors in the sources, and the tests that find them."""
