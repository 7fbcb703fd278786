"""Products of torch with a matrix for each group of rows, as products with looked up matrices.

Rows are sorted by expert, and a list says where those of each expert end. What
mxc-raise-experts reads is a matrix for each row. What depends on torch is imported where it is
used: only a program from torch needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The operator of transformers, which a program names that was exported with it.
TRANSFORMERS = "grouped_mm_fallback"


def expert_operations() -> dict[Any, Callable[..., Any]]:
    """The overloads of torch.ops with their decompositions; those of transformers where a program
    may have them, because it was imported."""
    import torch

    found: dict[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: _grouped_mm}
    own = getattr(torch.ops.transformers, TRANSFORMERS, None)
    return found if own is None else {**found, own.default: _grouped_mm}


def _grouped_mm(
    rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Rows [S, K] times the matrix [K, N] of their expert, of [E, K, N]: [S, N]. Rows of expert e
    end before `offs[e]`; those behind the last one are zero. Without `offs` it is a batch."""
    import torch

    kind = rows.dtype if out_dtype is None else out_dtype
    if bias is not None:
        raise NotImplementedError("_grouped_mm with a bias has no lowering; add it afterwards")
    if offs is None:
        return torch.bmm(rows, matrices).to(kind)
    if (rows.dim(), matrices.dim()) != (2, 3):
        raise NotImplementedError(
            f"_grouped_mm of {rows.dim()} by {matrices.dim()} dimensions has no lowering; groups "
            "are of rows, which is 2 by 3"
        )
    numbers = torch.arange(rows.shape[0], device=rows.device)
    expert = (numbers[:, None] >= offs[None, :]).sum(1)
    last = matrices.shape[0] - 1
    found = torch.bmm(rows[:, None, :], matrices[expert.clamp(max=last)])[:, 0].to(kind)
    return torch.where((expert <= last)[:, None], found, 0)
