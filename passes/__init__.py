"""The rewrites: one pass a file, each a value that prints as its spec."""
