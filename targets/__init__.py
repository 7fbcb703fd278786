"""Machines as frozen records: their resources, instructions and rates, each with its source."""
