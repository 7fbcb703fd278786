"""What configs say: config.json as checked records, and the metadata of a GGUF as config.json."""
