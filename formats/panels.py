"""The order of packed weights: panels of 16 rows, matrix after matrix.

A kernel reads a tensor as some matrices, such as one for each expert, of some rows each; the last
panel of a matrix is padded. compiler/packing/panels.py has the order of the bytes of a panel.
"""

#: Rows of a panel: the f32 lanes of a 512-bit register, and the rows of a matrix instruction.
PANEL = 16


def are_one_order(wanted: set[tuple[int, int]]) -> bool:
    """Whether the panels of a tensor are in one order for all who read it as so many (matrices,
    rows of each): whole panels follow each other, whatever matrix they are of."""
    whole = all(rows % PANEL == 0 for _, rows in wanted)
    return len({count * rows for count, rows in wanted} if whole else wanted) == 1
