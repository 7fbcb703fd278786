"""The contents of an artifact folder, written by the compiler and read by the runtime."""
