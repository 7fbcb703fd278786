"""What watches an execution: the sanitizer, counters, traces."""
