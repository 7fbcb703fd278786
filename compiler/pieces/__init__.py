"""Large files written in pieces by threads, processes or a cluster; a killed run is resumed."""
