"""What a model reads: each parameter of its program, and the rows of tensors that it is made of.

    key "model.layers.0.mlp.gate_up_proj.weight"  [2 I, H]
    rows  all of model.layers.0.mlp.gate_proj.weight, then all of model.layers.0.mlp.up_proj.weight

The tensors are named as transformers names them; other dialects are translated (gguf.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

#: A dimension of a tensor: what it is, for messages, and its size.
Dim = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """All rows of a tensor of `dims`: a row is what the last dimension holds.

    `taken`: the first of those that are meant, and how many; None: all.
    """

    tensor: str
    dims: tuple[Dim, ...]
    taken: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """What config.json says that the shape of the tensor is."""
        return tuple(size for _, size in self.dims)

    @property
    def size(self) -> int:
        """Elements of the rows that are meant."""
        first, *rest = self.shape
        return prod(rest) * (first if self.taken is None else self.taken[1])

    def describe(self) -> str:
        """The shape with the reason for each size: "[32 = hidden_size]"."""
        return f"[{', '.join(f'{size} = {reason}' for reason, size in self.dims)}]"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a program, of `shape`: a matrix [.., N, K], or numbers.

    `matrix`: activations are multiplied with it, so that it may be in blocks. `quantisable`:
    --quantize-dense makes blocks of it where it is plain. `experts`: the first dimension counts
    experts. `layout`: how its rows are reordered, a key of packing.items.LAYOUTS. `turned`: rows of
    it are the columns of each of its `rows`, one matrix after the other.
    """

    key: str
    shape: tuple[int, ...]
    rows: tuple[Rows, ...]
    matrix: bool = False
    quantisable: bool = False
    experts: bool = False
    layout: str = "identity"
    turned: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError where the rows do not fill the shape."""
        if sum(rows.size for rows in self.rows) != prod(self.shape):
            raise ValueError(f"{self.key}: {self.shape} is not what its rows come to")


def vector(key: str, dim: Dim, tensors: Sequence[str] = ()) -> Parameter:
    """Tensors [size] of floats, one behind the other; that named `key` where none is given."""
    rows = tuple(Rows(tensor=name, dims=(dim,)) for name in tensors or (key,))
    return Parameter(key=key, shape=(len(rows) * dim[1],), rows=rows)


def table(name: str, rows: Dim, columns: Dim) -> Parameter:
    """A tensor [rows, columns] of floats that is looked up."""
    source = Rows(tensor=name, dims=(rows, columns))
    return Parameter(key=name, shape=source.shape, rows=(source,))


def matrix(
    key: str,
    rows: Dim,
    columns: Dim,
    tensors: Sequence[str | Rows] = (),
    *,
    quantisable: bool = True,
) -> Parameter:
    """Tensors [rows, columns] below one another, or rows of tensors, which then are `rows` in all;
    the tensor named `key` where none is given."""
    dims = (rows, columns)
    sources = tuple(
        each if isinstance(each, Rows) else Rows(tensor=each, dims=dims)
        for each in tensors or (key,)
    )
    shape = (sum(each.size for each in sources) // columns[1], columns[1])
    return Parameter(key=key, shape=shape, rows=sources, matrix=True, quantisable=quantisable)
