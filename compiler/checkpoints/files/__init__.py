"""Files on disk: headers that are checked before use, and the location of each tensor."""
