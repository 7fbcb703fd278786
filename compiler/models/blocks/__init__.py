"""Blocks that decoders are made of: the tensors that each wants, and its part of the program."""
