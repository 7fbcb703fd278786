"""From a code object, or its parts, to instructions: ELF, metadata, encodings, text."""
