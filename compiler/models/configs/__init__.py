"""Readers of configs: checked fields of config.json, and GGUF metadata as config.json."""
