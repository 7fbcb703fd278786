"""Other statements and loops in a kernel, for faults that tests make."""

from collections.abc import Callable
from dataclasses import replace

from mxc.kernels.language import Body, Do, For, Kernel


def edited(kernel: Kernel, change: Callable[[Do | For], Body]) -> Kernel:
    """The kernel with other statements or loops in place of some."""

    def go(body: Body) -> Body:
        found: list[Do | For] = []
        for each in body:
            for new in change(each):
                found.append(replace(new, body=go(new.body)) if isinstance(new, For) else new)
        return tuple(found)

    return replace(kernel, body=go(kernel.body))


def without(kernel: Kernel, label: str) -> Kernel:
    """The kernel without a statement."""
    return edited(
        kernel, lambda each: () if isinstance(each, Do) and each.label == label else (each,)
    )
