"""The IR that mxc builds and matches, and typed builders for target-specific MLIR operations."""

from mxc.dialects import operators as operators
