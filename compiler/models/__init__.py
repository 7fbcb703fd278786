"""Models: configs, architectures, the blocks that they consist of, and the program builder."""
