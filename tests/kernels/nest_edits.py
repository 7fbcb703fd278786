"""Edits of the statements and loops of a kernel, by which tests make it faulty."""

from collections.abc import Callable
from dataclasses import replace

from mxc.kernels.language import Body, Do, For, Kernel


def edited(kernel: Kernel, change: Callable[[Do | For], Body]) -> Kernel:
    """Return the kernel with each statement or loop replaced by what `change` returns for it."""

    def go(body: Body) -> Body:
        found: list[Do | For] = []
        for each in body:
            for new in change(each):
                found.append(replace(new, body=go(new.body)) if isinstance(new, For) else new)
        return tuple(found)

    return replace(kernel, body=go(kernel.body))


def without(kernel: Kernel, label: str) -> Kernel:
    """Return the kernel without the statements of this label."""
    return edited(
        kernel, lambda each: () if isinstance(each, Do) and each.label == label else (each,)
    )
