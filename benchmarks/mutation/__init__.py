"""Mutation testing: small errors in the sources, and the tests that detect them."""
