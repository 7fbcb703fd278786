"""The drive: load an artifact, run it. Never imports the compiler."""
