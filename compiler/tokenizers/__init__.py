"""Tokenizers between the forms in which checkpoints carry them."""
