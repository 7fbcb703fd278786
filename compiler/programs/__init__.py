"""Programs from other frameworks: each becomes one module, its parameters and their names."""
