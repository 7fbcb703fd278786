"""What a model reads: each parameter of its program, and the rows of tensors that it is made of.

    key "model.layers.0.mlp.gate_up_proj.weight"  [2 I, H]
    rows  all of model.layers.0.mlp.gate_proj.weight, then all of model.layers.0.mlp.up_proj.weight

The tensors are named as transformers names them; other dialects are translated (gguf.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

#: A dimension of a tensor: what it is, for messages, and its size.
Dim = tuple[str, int]

#: Format of a tensor by its name; None where there is no such tensor.
FormatOf = Callable[[str], str | None]

#: How a parameter is divided among devices: its rows, of each section as many; its matrices, which
#: its first dimension counts; or its columns, so that products are addends of a sum over the
#: devices. Or all of it is on the first device, an addend of such a sum.
Split = Literal["rows", "matrices", "columns", "first"]


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

    `matrix`: activations are multiplied with it, so that it may be in blocks. `quantizable`:
    --quantize-dense makes blocks of it where it is plain. `experts`: the first dimension counts
    experts. `layout`: how its rows are reordered, as packing.items has it. `turned`: rows of
    it are the columns of each of its `rows`, one matrix after the other. `split`: what each of
    several devices has of it; None: all. `sections`: how many rows follow one another that are
    divided by themselves, as those of gate and up; none: all of them.
    """

    key: str
    shape: tuple[int, ...]
    rows: tuple[Rows, ...]
    matrix: bool = False
    quantizable: bool = False
    experts: bool = False
    layout: str = "identity"
    turned: bool = False
    split: Split | None = None
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where the rows do not fill the shape."""
        if sum(rows.size for rows in self.rows) != prod(self.shape):
            raise ValueError(f"{self.key}: {self.shape} is not what its rows come to")

    @property
    def row_axis(self) -> int:
        """The dimension that counts the rows of a matrix."""
        return int(self.experts)

    @property
    def row_count(self) -> int:
        """Rows of all matrices."""
        return prod(self.shape[: self.row_axis + 1])

    def share(self, devices: int) -> tuple[int, ...]:
        """The shape of what each of several devices has."""
        shape, rows = list(self.shape), self.row_axis
        axis = {"matrices": 0, "rows": rows, "columns": rows + 1}.get(self.split or "")
        if axis is not None:
            shape[axis] //= devices
        return tuple(shape)

    def runs(self, device: int, devices: int) -> tuple[tuple[int, int], ...]:
        """The rows that one of several devices has: the first of each run, and how many."""
        rows = self.row_count
        if self.split == "matrices":
            return ((device * rows // devices, rows // devices),)
        if self.split != "rows":
            return ((0, rows),)
        found, first = [], 0
        sections = self.sections or (self.shape[self.row_axis],)
        while first < rows:
            for size in sections:
                found.append((first + device * size // devices, size // devices))
                first += size
        return tuple(found)


def vector(key: str, dim: Dim, *, split: Split | None = None) -> Parameter:
    """The tensor `key` [size] of floats."""
    rows = (Rows(tensor=key, dims=(dim,)),)
    return Parameter(key=key, shape=(dim[1],), rows=rows, split=split)


def table(name: str, rows: Dim, columns: Dim) -> Parameter:
    """A tensor [rows, columns] of floats that is looked up, of several devices each in its rows."""
    source = Rows(tensor=name, dims=(rows, columns))
    return Parameter(key=name, shape=source.shape, rows=(source,), split="rows")


def matrix(
    key: str,
    rows: Dim,
    columns: Dim,
    tensors: Sequence[str | Rows] = (),
    *,
    quantizable: bool = True,
    split: Split | None = None,
    sections: tuple[int, ...] = (),
) -> Parameter:
    """Tensors [rows, columns] below one another, or rows of tensors, which then are `rows` in all;
    the tensor named `key` where none is given. `sections`: where there are none, the tensors."""
    dims = (rows, columns)
    sources = tuple(
        each if isinstance(each, Rows) else Rows(tensor=each, dims=dims)
        for each in tensors or (key,)
    )
    heights = tuple(each.size // columns[1] for each in sources)
    return Parameter(
        key=key,
        shape=(sum(heights), columns[1]),
        rows=sources,
        matrix=True,
        quantizable=quantizable,
        split=split,
        sections=sections or heights,
    )


def projections(
    name: str,
    whole: str,
    parts: Mapping[str, Dim],
    columns: Dim,
    format_of: FormatOf,
    *,
    bias: bool,
    fused: Dim | None = None,
    apart: bool = False,
) -> Iterator[Parameter]:
    """Matrices [rows, columns] that are multiplied with the same input, and their biases [rows].

    `parts`: what follows `name` in their names, and their rows. Where the weights are of one
    format, and the biases, they are one parameter `whole`: the parts below one another; unless
    `apart`. `fused`: they are one tensor `whole`, of so many rows, in the checkpoint too.
    """
    kinds: dict[str, tuple[Dim, ...]] = {"weight": (columns,)} | ({"bias": ()} if bias else {})
    alike = all(len({format_of(f"{name}.{part}.{kind}") for part in parts}) == 1 for kind in kinds)
    found = {part: {part: rows} for part, rows in parts.items()}
    if fused is not None:
        found = {whole: {whole: fused}}
    elif alike and not apart:
        found = {whole: dict(parts)}
    for key, tensors in found.items():
        sections = tuple(rows for _, rows in (parts if key == whole else tensors).values())
        for kind, rest in kinds.items():
            yield Parameter(
                key=f"{name}.{key}.{kind}",
                shape=(sum(sections), *(size for _, size in rest)),
                rows=tuple(
                    Rows(tensor=f"{name}.{tensor}.{kind}", dims=(rows, *rest))
                    for tensor, rows in tensors.items()
                ),
                matrix=kind == "weight",
                quantizable=kind == "weight",
                split="rows",
                sections=sections,
            )
