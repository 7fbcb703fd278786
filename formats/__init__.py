"""Numbers without MLIR: formats, scale recipes, rounding, packing, and the numpy reference."""
