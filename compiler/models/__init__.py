"""One builder for each model architecture."""
