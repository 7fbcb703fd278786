"""What checkpoints, archives and artifacts hold: listed, measured, compared."""
