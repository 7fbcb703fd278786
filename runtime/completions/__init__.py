"""Text and chats on top of the engine: prompts in, parsed pieces of answers out."""
