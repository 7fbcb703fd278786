"""One reader for each way that checkpoints are written."""
