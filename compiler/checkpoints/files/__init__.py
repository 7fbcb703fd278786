"""Files on disk: headers checked before anything is believed, and where each tensor lies."""
