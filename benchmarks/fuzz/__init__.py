"""Random programs: their descriptions, texts and values."""
