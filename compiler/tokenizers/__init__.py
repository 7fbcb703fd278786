"""Conversion and checks of tokenizers in checkpoints."""
