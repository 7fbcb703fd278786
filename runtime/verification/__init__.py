"""Runs each kernel of an artifact on a GPU and on the simulator, compares and times them."""
