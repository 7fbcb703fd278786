"""Names of the variants of a kernel by number of rows, and of operations that every layer has.

k    k_from_113    k_from_1089        variants of k: below 113 rows, from 113 rows on, ..
"""

from __future__ import annotations

import re

#: The number of a layer in a name.
_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


def case_name(kernel: str, rows: int) -> str:
    """The symbol of the variant of `kernel` for calls with at least `rows` rows."""
    return f"{kernel}_from_{rows}"


def in_all_layers(operation: str) -> str:
    """The name of an operation with its layer number replaced by "*"."""
    return _LAYER.sub("*", operation)
