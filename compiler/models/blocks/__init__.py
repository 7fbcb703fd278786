"""Blocks of decoders: each defines its parameters and builds its part of the program."""
