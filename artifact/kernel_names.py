"""Names of kernels of which one of several runs, by the number of rows that a call has.

k    k_from_113    k_from_1089        what runs for a call of k: below 113 rows, from 113 on, ..
"""

from __future__ import annotations


def case_name(kernel: str, rows: int) -> str:
    """The symbol of what runs for a call of `kernel` from so many rows on."""
    return f"{kernel}_from_{rows}"
