"""Machines as frozen records: what one holds, its instructions, rates and their sources."""
