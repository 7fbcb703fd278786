"""The host program of an artifact: its module, its bytecode, the device that it sees."""
