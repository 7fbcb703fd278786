"""Servers under load: requests, servers that take turns, and the table of what they did."""
