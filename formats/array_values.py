"""Arrays that numpy reads by their values: float32 numbers, computed from codes and scales.

np.sum(q), q * 2, q[0], np.asarray(q)    use the values, which are computed for each call
q @ w, np.matmul(q, w)                   `matmul`: summed in float64
q += 1, np.add(q, 1, out=q), q[0] = 1    refused: a new value has no code
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from mxc.errors import FormatError

Floats = npt.NDArray[np.float32]


class ArrayOfValues(NDArrayOperatorsMixin, ABC):
    """A read-only array of float32 values that is stored in another form.

    A subclass has `shape`, computes its values, and describes itself for errors.
    """

    __slots__ = ()

    shape: Any

    @abstractmethod
    def values(self) -> Floats:
        """The values, float32 of `shape`."""

    @abstractmethod
    def describe(self) -> str:
        """The format and shape, for error messages."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The type of the values."""
        return np.dtype(np.float32)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Any:
        """The values. Raises ValueError if `copy` is False: the values are always computed."""
        if copy is False:
            raise ValueError(f"{self.describe()} has no values in memory to share; leave copy out")
        return self.values() if dtype is None else self.values().astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """The result of `ufunc` on the values. Raises FormatError where `ufunc` would write to one
        of these arrays."""
        written = (*options.get("out", ()), *(inputs[:1] if method == "at" else ()))
        for each in written:
            if isinstance(each, ArrayOfValues):
                raise FormatError(
                    f"np.{ufunc.__name__} would write into {each.describe()}, which is read-only; "
                    "compute another array and quantize it"
                )
        if ufunc is np.matmul and method == "__call__" and not options:
            return matmul(*inputs)
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for numpy's attributes, refer to numpy.asarray() of the array."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{self.describe()} has no attribute {name!r}; numpy.asarray() of it, its values, has"
        )

    def __getitem__(self, key: Any) -> Any:
        """Values, as numpy indexes them."""
        return self.values()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Raises FormatError."""
        raise FormatError(f"{self.describe()} is read-only; change its values and quantize them")

    def __iter__(self) -> Iterator[Any]:
        """Values along the first axis."""
        return iter(self.values())

    def __len__(self) -> int:
        """Size of the first axis. Raises TypeError for an array without axes."""
        return len(np.empty(self.shape, np.bool_))

    def __bool__(self) -> bool:
        """Truth of a single value. Raises ValueError for more than one, as numpy does."""
        return bool(self.values())


def matmul(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """a [.., M, K] times b [.., K, N] as float32, summed in float64. Scales may have any scope.

    Axes follow numpy.matmul. Raises FormatError, naming both operands, where shapes do not match.
    """
    left, right = _plain(a), _plain(b)
    try:
        product: Floats = np.matmul(left, right, dtype=np.float64).astype(np.float32)
    except ValueError as error:
        raise FormatError(
            f"matmul of {_describe(a)} by {_describe(b)}: wants [.., M, K] by [.., K, N], "
            "with leading axes that are equal or 1"
        ) from error
    return product


def _plain(array: Any) -> Any:
    return array.values() if isinstance(array, ArrayOfValues) else array


def _describe(array: Any) -> str:
    if isinstance(array, ArrayOfValues):
        return array.describe()
    plain = np.asarray(array)
    return f"{plain.dtype} {list(plain.shape)}"
