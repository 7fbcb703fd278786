"""Assembly text for gfx950 as kernels, without an assembler: as LLVM and as people write it."""
