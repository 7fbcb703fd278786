"""The words: formats, recipes, targets, and the IR shapes that the passes build and match."""
