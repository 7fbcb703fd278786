"""A scaled product with an MX result: a contraction, followed by its quantization.

    y        = lhs [.., M, KO, KB] x rhs [.., N, KO, KB]       f32 [.., M, N]
    axis -1: elements [.., M, N / 32, 32], scales [.., M, N / 32]
    axis -2: elements [.., N, M / 32, 32], scales [.., N, M / 32], of y transposed

The next product reads the first form as rows. A backward pass, which reads columns, needs the
second, which is the product with its sides exchanged. A kernel that computes both steps does not
store y.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import ScaleRecipe


def scaled_matmul(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    out: BlockFormat | str,
    recipe: ScaleRecipe | str,
    lhs_scale: ir.Value | None = None,
    rhs_scale: ir.Value | None = None,
    batch: int = 0,
    axis: int = -1,
    name: str | None = None,
) -> tuple[ir.Value, ir.Value]:
    """The elements and f8E8M0FNU scales of the product, quantized to `out` by `recipe`.

    lhs, rhs, their scales, `batch` and `name` as for `scaled.scaled_contraction`, which returns
    f32. `axis`: blocks lie along the columns, -1, or along the rows, -2. Raises ValueError for
    another axis, where that axis is not a static multiple of 32, and as the contraction does;
    FormatError for an unknown format or recipe.
    """
    if axis not in (-1, -2):
        raise ValueError(f"blocks of a product lie along axis -1, its columns, or -2, got {axis}")
    if axis == -2:
        lhs, lhs_scale, rhs, rhs_scale = rhs, rhs_scale, lhs, lhs_scale
    product = scaled_contraction(
        lhs, rhs, lhs_scale=lhs_scale, rhs_scale=rhs_scale, batch=batch, name=name
    )
    location = ir.Location.name(name) if name is not None else ir.Location.current
    with location:
        return quantize_mx(product, out, recipe)
