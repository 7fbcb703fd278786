"""The canonical tensor, and the decoding of stored bytes into its rows."""
