"""The canonical tensor, and how stored bytes become its rows."""
