"""What a program says: the shapes of IR that mxc builds and matches, and MLIR of its targets."""
