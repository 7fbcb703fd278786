"""`mxc serve`: artifacts over HTTP, as OpenAI's clients expect it. Never imports the compiler."""
