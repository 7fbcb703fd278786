"""Test cases that frameworks ship, for framework_cases.py."""
