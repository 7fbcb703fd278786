"""Each kernel of an artifact on a GPU and on the simulator, compared and timed."""
