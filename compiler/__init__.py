"""The road from checkpoint to artifact."""
