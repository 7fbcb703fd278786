"""Continuous batching: many requests over one model, one thread that plans and runs the steps.

The engine handles tokens only; text, chats and HTTP are built on top of it.
"""
