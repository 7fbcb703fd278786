"""What instructions compute: a family a file, each an operation on arrays."""
