"""Print a kernel as text: sizes, arrays with their layouts, derived coordinates, the loop nest."""

from __future__ import annotations

from mxc.kernels.language import Array, Body, Do, For, Kernel

#: The attribute of an executable that holds the text of its kernel.
NEST = "mxc.nest"


def printed(kernel: Kernel) -> str:
    """The text of a kernel."""
    sizes = ", ".join(f"{axis} {_size(kernel, axis)}" for axis in kernel.sizes)
    lines = [f"kernel {kernel.name} ({sizes})"]
    lines += [f"  {_array(each)}" for each in kernel.arrays.values()]
    lines += [f"  {name} is {derived}" for name, derived in kernel.derived.items()]
    return "\n".join([*lines, *_body(kernel.body, 0)]) + "\n"


def _size(kernel: Kernel, axis: str) -> str:
    if axis in kernel.spans:
        table, group = kernel.spans[axis]
        return f"{table}[{group} + 1] - {table}[{group}]"
    size = kernel.sizes[axis]
    return "of the call" if size is None else str(size)


def _array(array: Array) -> str:
    axes = f"[{' '.join(array.axes)}]"
    axes += "".join(f" /{axis} {by}" for axis, by in array.grain.items())
    head = f"{array.name:<6} {array.element.name:<9} {axes:<16} {array.space:<6}"
    guards = "".join(f", {axis} {guard}" for axis, guard in array.guards.items())
    guards += "".join(f", {axis} in slots of {by}" for axis, by in array.slots.items())
    if array.chains is not None:
        guards += f", chains: {array.chains}"
    return f"{head} {array.layout or '-'}{guards}".rstrip()


def _body(body: Body, depth: int) -> list[str]:
    lines = []
    for each in body:
        if isinstance(each, For):
            lines.append("  " * depth + _head(each))
            lines += _body(each.body, depth + 1)
        else:
            lines.append("  " * depth + statement(each))
    return lines


def _head(loop: For) -> str:
    grid = " in grid" if loop.kind == "grid" else ""
    first = "first " if loop.kind == "first" else ""
    rest = f", rest by {' or '.join(map(str, loop.rest))}" if loop.rest else ""
    return f"for {first}{loop.axis} by {loop.by}{grid}{rest}:"


def statement(do: Do) -> str:
    """The text of one statement."""
    what = {"zero": "0", "copy": " ".join(do.ins)}.get(do.op, f"{do.op} {', '.join(do.ins)}")
    text = f"{do.out} {'+=' if do.adds else '='} {what}"
    notes = []
    if do.early is not None:
        later = f"of {do.early.axis} + {do.early.by} " if do.early.by else ""
        notes.append(f"{later}in last {do.early.last}")
    notes += [f"asked for {do.ahead} k ahead"] if do.ahead else []
    text += f" ({', '.join(notes)})" if notes else ""
    return f"{text:<40} : {do.atom.name}" if do.atom else text
