"""What the folder of an artifact holds, written by the compiler and read by the runtime."""
