"""Many requests over one model: pages of KV cache, the plan of each step, one thread that runs it.

Knows tokens alone: text, chats and HTTP are built on it.
"""
