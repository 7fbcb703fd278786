"""Parameters of a model's program, and the rows of checkpoint tensors that they consist of.

    key "model.layers.0.mlp.gate_up_proj.weight"  [2 I, H]
    rows  all of model.layers.0.mlp.gate_proj.weight, then all of model.layers.0.mlp.up_proj.weight

Tensors have their names in transformers; names of other dialects are translated (gguf.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

#: A dimension of a tensor: a description for messages, and the size.
Dim = tuple[str, int]

#: Format of a tensor by its name; None where there is no such tensor.
FormatOf = Callable[[str], str | None]

#: How a parameter is divided among devices. "rows": an equal part of the rows of each section.
#: "matrices": a part of the matrices, which the first dimension counts. "columns": a part of the
#: columns, so that products are partial sums, which are added over the devices. "first": all of it
#: is on the first device, whose partial sum includes it.
Split = Literal["rows", "matrices", "columns", "first"]


@dataclass(frozen=True, kw_only=True)
class CheckpointRows:
    """Rows of a checkpoint tensor with the dimensions `dims`.

    `taken`: (first row, number of rows); None for all rows. `padded`: the tensor may have further
    rows of zeros.
    """

    tensor: str
    dims: tuple[Dim, ...]
    taken: tuple[int, int] | None = None
    padded: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, as config.json implies it."""
        return tuple(size for _, size in self.dims)

    @property
    def size(self) -> int:
        """Number of elements of the taken rows."""
        first, *rest = self.shape
        return prod(rest) * (first if self.taken is None else self.taken[1])

    def describe(self) -> str:
        """Return the shape with the reason for each size: "[32 = hidden_size]"."""
        return f"[{', '.join(f'{size} = {reason}' for reason, size in self.dims)}]"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a program, of `shape`: a matrix [.., N, K], or a plain tensor.

    `rows`: the rows of checkpoint tensors that it consists of, concatenated. `matrix`: activations
    are multiplied with it, so that it may be in a block format. `quantizable`: --quantize-dense
    quantizes it where it is plain. `experts`: the first dimension counts experts. `layout`: the
    reordering of its rows, see packing.items. `turned`: each of its matrices is the transpose of
    one of its `rows`. `split`: how it is divided among devices; None for all of it on each.
    `sections`: sizes of consecutive row sections that are divided separately, such as gate and up;
    empty for one section. `plain`: (key, number) of its last rows that --quantize-dense leaves
    plain, and which then become a parameter of their own (`apart`).
    """

    key: str
    shape: tuple[int, ...]
    rows: tuple[CheckpointRows, ...]
    matrix: bool = False
    quantizable: bool = False
    experts: bool = False
    layout: str = "identity"
    turned: bool = False
    split: Split | None = None
    sections: tuple[int, ...] = ()
    plain: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where the rows do not fill the shape."""
        if sum(rows.size for rows in self.rows) != prod(self.shape):
            raise ValueError(f"{self.key}: {self.shape} is not what its rows come to")

    def apart(self) -> tuple[Parameter, ...]:
        """Return the rows that --quantize-dense quantizes, and those of `plain`, as parameters."""
        if self.plain is None:
            return (self,)
        (key, count), (rows,), columns = self.plain, self.rows, self.shape[-1]
        first = self.row_count - count
        left = replace(
            self,
            shape=(first, columns),
            rows=(replace(rows, taken=(0, first)),),
            sections=(first,),
            plain=None,
        )
        others = (replace(rows, taken=(first, count)),)
        return left, replace(
            left,
            key=key,
            shape=(count, columns),
            rows=others,
            sections=(count,),
            quantizable=False,
        )

    @property
    def row_axis(self) -> int:
        """The dimension that counts the rows of a matrix."""
        return int(self.experts)

    @property
    def row_count(self) -> int:
        """Number of rows of all matrices together."""
        return prod(self.shape[: self.row_axis + 1])

    def share(self, devices: int) -> tuple[int, ...]:
        """Return the shape of each device's share."""
        shape, rows = list(self.shape), self.row_axis
        axis = {"matrices": 0, "rows": rows, "columns": rows + 1}.get(self.split or "")
        if axis is not None:
            shape[axis] //= devices
        return tuple(shape)

    def runs(self, device: int, devices: int) -> tuple[tuple[int, int], ...]:
        """Return the rows of one device's share, as runs of (first row, number of rows)."""
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
    """Return the parameter of the float tensor `key` [size]."""
    rows = (CheckpointRows(tensor=key, dims=(dim,)),)
    return Parameter(key=key, shape=(dim[1],), rows=rows, split=split)


def table(name: str, rows: Dim, columns: Dim) -> Parameter:
    """Return the parameter of a lookup table [rows, columns], divided among devices by rows."""
    source = CheckpointRows(tensor=name, dims=(rows, columns))
    return Parameter(key=name, shape=source.shape, rows=(source,), split="rows")


def matrix(
    key: str,
    rows: Dim,
    columns: Dim,
    tensors: Sequence[str | CheckpointRows] = (),
    *,
    quantizable: bool = True,
    split: Split | None = None,
    sections: tuple[int, ...] = (),
) -> Parameter:
    """Return the parameter of tensors [rows, columns] that are concatenated along their rows.

    tensors: names of tensors, or CheckpointRows; by default the tensor `key`. sections: see
    Parameter; by default one section per tensor.
    """
    dims = (rows, columns)
    sources = tuple(
        each if isinstance(each, CheckpointRows) else CheckpointRows(tensor=each, dims=dims)
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
    """Yield matrices [rows, columns] that are multiplied with the same input, and biases [rows].

    parts: the rows of each matrix by the end of its name, after `name`. Matrices of one format,
    with biases of one format, are concatenated to one parameter `whole`, unless `apart`. fused: the
    checkpoint has one tensor `whole` with this many rows instead.
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
                    CheckpointRows(tensor=f"{name}.{tensor}.{kind}", dims=(rows, *rest))
                    for tensor, rows in tensors.items()
                ),
                matrix=kind == "weight",
                quantizable=kind == "weight",
                split="rows",
                sections=sections,
            )
