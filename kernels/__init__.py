"""The kernel language: what a kernel computes, how it is cut up, printed, interpreted, lowered."""
