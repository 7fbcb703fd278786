"""Names of kernels of which one of several runs, and of operations that every layer has.

k    k_from_113    k_from_1089        what runs for a call of k: below 113 rows, from 113 on, ..
"""

from __future__ import annotations

import re

#: A layer's number in a name.
_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


def case_name(kernel: str, rows: int) -> str:
    """The symbol of what runs for a call of `kernel` from so many rows on."""
    return f"{kernel}_from_{rows}"


def in_all_layers(operation: str) -> str:
    """The name of an operation with "*" for the number of its layer."""
    return _LAYER.sub("*", operation)
