"""Writes MLIR as text, a function at a time. A method writes an operation and returns its value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mxc.artifact.manifest import SCOPE

#: A dynamic size: it is known only at the call.
DYNAMIC = -1


@dataclass(frozen=True)
class Value:
    """An SSA value that is a tensor."""

    name: str
    shape: tuple[int, ...]
    element: str

    @property
    def type(self) -> str:
        """The type of the tensor as MLIR writes it."""
        return tensor_type(self.shape, self.element)


def tensor_type(shape: Sequence[int], element: str) -> str:
    """Write a ranked tensor type."""
    sizes = "".join("?x" if size < 0 else f"{size}x" for size in shape)
    return f"tensor<{sizes}{element}>"


#: A tensor and what indexes each of its dimensions: a loop, a loop floordiv a number, or a number;
#: such as "m k/32", "r o 0".
Read = tuple[Value, str]


class Writer:
    """Writes a function from its first operation to its last.

    constants: values of the arguments that become constants. parameters: names of the arguments
    that become named parameters. In the methods, `sizes` has the size of each loop by its letter.
    """

    def __init__(
        self,
        name: str,
        constants: Mapping[str, npt.NDArray[np.int8]],
        parameters: Collection[str] = (),
    ) -> None:
        self._name, self._constants, self._parameters = name, constants, parameters
        self._globals: list[str] = []
        self.arguments: list[Value] = []
        self._lines: list[str] = []
        self._count = 0
        #: SSA value of the dynamic size, once an argument has it.
        self._rows = ""

    def text(self, results: Sequence[Value]) -> str:
        """Return the text of the function, which returns `results`, and of its globals."""
        given = ", ".join(f"{each.name}: {each.type}" for each in self.arguments)
        kinds = ", ".join(each.type for each in results)
        names = ", ".join(each.name for each in results)
        body = "\n".join(f"  {line}" for line in self._lines)
        return "".join(self._globals) + (
            f"func.func @{self._name}({given}) -> ({kinds}) {{\n{body}\n"
            f"  return {names} : {kinds}\n}}\n"
        )

    def argument(self, name: str, shape: Sequence[int], element: str) -> Value:
        """Add an argument, or the constant or parameter in its place."""
        if name in self._constants:
            digits = self._constants[name].tobytes().hex().upper()
            kind = tensor_type(shape, element)
            return self.value(f'arith.constant dense<"0x{digits}"> : {kind}', shape, element)
        if name in self._parameters:
            kind, symbol = tensor_type(shape, element), f"{self._name}_{name}"
            self._globals.append(
                f"util.global private @{symbol} = "
                f'#flow.parameter.named<"{SCOPE}"::"{symbol}"> : {kind}\n'
            )
            load = f"util.global.load immutable @{symbol} : {kind}"
            return self.value(load, shape, element)
        found = Value(f"%{name}", tuple(shape), element)
        self.arguments.append(found)
        if DYNAMIC in found.shape and not self._rows:
            axis = self.scalar(f"arith.constant {found.shape.index(DYNAMIC)} : index")
            self._rows = self.scalar(f"tensor.dim {found.name}, {axis} : {found.type}")
        return found

    def scalar(self, text: str) -> str:
        """Write the operation `text`, and return the name of its result."""
        self._count += 1
        self._lines.append(f"%{self._count} = {text}")
        return f"%{self._count}"

    def value(self, text: str, shape: Sequence[int], element: str) -> Value:
        """Write the operation `text`, and return the tensor that it gives."""
        return Value(self.scalar(text), tuple(shape), element)

    def constant(self, number: float, kind: str) -> str:
        """Write a scalar constant."""
        return self.scalar(f"arith.constant {number!r} : {kind}")

    def empty(self, shape: Sequence[int], element: str) -> Value:
        """Write tensor.empty."""
        rows = self._rows if DYNAMIC in shape else ""
        return self.value(f"tensor.empty({rows}) : {tensor_type(shape, element)}", shape, element)

    def fill(self, number: float, shape: Sequence[int], element: str) -> Value:
        """Write linalg.fill of tensor.empty."""
        return self.named("linalg.fill", [(self.constant(number, element), element)],
                          self.empty(shape, element))  # fmt: skip

    def named(
        self, op: str, inputs: Sequence[tuple[str, str]], out: Value, attributes: str = ""
    ) -> Value:
        """Write a named linalg operation. inputs: names and types of values."""
        names = ", ".join(name for name, _ in inputs)
        kinds = ", ".join(kind for _, kind in inputs)
        ends = op in ("linalg.transpose", "linalg.broadcast")
        before, after = ("", attributes) if ends else (attributes, f"-> {out.type}")
        return self.value(
            f"{op} {before} ins({names} : {kinds}) outs({out.name} : {out.type}) {after}",
            out.shape, out.element,
        )  # fmt: skip

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Write linalg.transpose."""
        out = self.empty([value.shape[axis] for axis in order], value.element)
        return self.named("linalg.transpose", [(value.name, value.type)], out,
                          f"permutation = {list(order)}")  # fmt: skip

    def broadcast(self, value: Value, shape: Sequence[int], added: Sequence[int]) -> Value:
        """Write linalg.broadcast along the dimensions `added` of the result."""
        out = self.empty(shape, value.element)
        return self.named("linalg.broadcast", [(value.name, value.type)], out,
                          f"dimensions = {list(added)}")  # fmt: skip

    def bitcast(self, value: Value, shape: Sequence[int], element: str) -> Value:
        """Write flow.tensor.bitcast."""
        sizes = f"{{{self._rows}}}" if DYNAMIC in value.shape else ""
        return self.value(
            f"flow.tensor.bitcast {value.name} : {value.type}{sizes} -> "
            f"{tensor_type(shape, element)}{sizes}", shape, element,
        )  # fmt: skip

    def expand(self, value: Value, axis: int, sizes: Sequence[int]) -> Value:
        """Write tensor.expand_shape of the dimension `axis` into several."""
        shape = [*value.shape[:axis], *sizes, *value.shape[axis + 1 :]]
        given = ", ".join(self._rows if s < 0 else str(s) for s in shape)
        return self.value(
            f"tensor.expand_shape {value.name} {_groups(len(value.shape), axis, len(sizes))} "
            f"output_shape [{given}] : {value.type} into {tensor_type(shape, value.element)}",
            shape, value.element,
        )  # fmt: skip

    def collapse(self, value: Value, axis: int) -> Value:
        """Write tensor.collapse_shape of the dimension `axis` and the next into one."""
        size = value.shape[axis] * value.shape[axis + 1]
        if DYNAMIC in value.shape[axis : axis + 2]:
            assert 1 in value.shape[axis : axis + 2]
            size = DYNAMIC
        shape = [*value.shape[:axis], size, *value.shape[axis + 2 :]]
        return self.value(
            f"tensor.collapse_shape {value.name} {_groups(len(shape), axis, 2)} : {value.type} "
            f"into {tensor_type(shape, value.element)}", shape, value.element,
        )  # fmt: skip

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Write tensor.concat of values of one shape."""
        first = values[0]
        shape = [size * (len(values) if at == axis else 1) for at, size in enumerate(first.shape)]
        names, kinds = (", ".join(each) for each in zip(*((v.name, v.type) for v in values),
                                                        strict=True))  # fmt: skip
        kind = tensor_type(shape, first.element)
        return self.value(f"tensor.concat dim({axis}) {names} : ({kinds}) -> {kind}", shape,
                          first.element)  # fmt: skip

    def each(self, value: Value, kind: str, body: Callable[[str], str]) -> Value:
        """Write a linalg.generic that computes an element of type `kind` from each element."""
        loops = "abcd"[: len(value.shape)]
        index, sizes = " ".join(loops), dict(zip(loops, value.shape, strict=True))
        return self.generic([(value, index)], index, kind, sizes, body)

    def generic(
        self, reads: Sequence[Read], out: str, element: str, sizes: Mapping[str, int],
        body: Callable[..., str], init: Value | None = None, location: str = "",
    ) -> Value:  # fmt: skip
        """Write a linalg.generic.

        out: the loops that index the result; all other loops of `sizes` are reductions. element:
        the type of the result. body: gets a scalar for each read, and the accumulator if there is a
        reduction. init: the initial value; tensor.empty if None. location: a name.
        """
        given = sizes.keys()
        kinds = ["parallel" if loop in out.split() else "reduction" for loop in given]
        target = init or self.empty([sizes[loop] for loop in out.split()], element)
        maps = ", ".join(affine(given, each) for each in [*(index for _, index in reads), out])
        names = [f"%a{self._count}_{number}" for number in range(len(reads) + 1)]
        types = [value.element for value, _ in reads] + [element]
        head = ", ".join(f"{name}: {kind}" for name, kind in zip(names, types, strict=True))
        outer, self._lines = self._lines, []
        result = body(*names[:-1], *(names[-1:] if "reduction" in kinds else []))
        inner, self._lines = self._lines, outer
        ins = ", ".join(value.name for value, _ in reads)
        of = ", ".join(value.type for value, _ in reads)
        self._lines.append(
            f"%g{self._count} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["
            + ", ".join(f'"{kind}"' for kind in kinds)
            + f"]}}{f' ins({ins} : {of})' if reads else ''} "
            f"outs({target.name} : {target.type}) {{"
        )
        self._lines += [f"^bb0({head}):", *(f"  {line}" for line in inner)]
        end = f' loc("{location}")' if location else ""
        self._lines += [f"  linalg.yield {result} : {element}", f"}} -> {target.type}{end}"]
        name = f"%g{self._count}"
        self._count += 1
        return Value(name, target.shape, element)


def affine(loops: Iterable[str], results: str) -> str:
    """Write an affine map from loops to `results`, in which "k/32" is k floordiv 32."""
    names = " ".join(loops).split()
    found = [r.replace("/", " floordiv ") for r in results.split()]
    return f"affine_map<({', '.join(names)}) -> ({', '.join(found)})>"


def _groups(rank: int, axis: int, count: int) -> str:
    """Write the reassociation of `rank` dimensions of which `axis` stands for `count` others."""
    groups, place = [], 0
    for number in range(rank):
        width = count if number == axis else 1
        groups.append(list(range(place, place + width)))
        place += width
    return str(groups)
