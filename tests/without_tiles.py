"""A target for this CPU whose programs do not use the tile registers of AMX."""

from mxc.targets.tile_permission import refusal

#: This CPU. One with tiles is asked for the vectors of its predecessor, which it has as well.
TARGET = "cpu" if refusal() else "cpu:icelake-server"
