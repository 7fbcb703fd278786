"""Large files written in pieces, by threads, processes or a cluster, that a second run resumes."""
