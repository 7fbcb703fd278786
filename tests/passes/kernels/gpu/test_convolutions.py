"""Convolutions whose number of images comes with the call, by kernels for plain products, against
torch. Waves of 64 run on the simulator; kernels in waves of 32 are interpreted as MLIR."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mxc.dialects.context import new_context
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.product_forms import TYPES

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A convolution of `count` images of shape `images` with `filters`.

    Shapes are [C, ..] and [F, C, ..]; if channels are `last`, [.., C] and [.., C, F]; in `groups`,
    [G, C, ..] and [G, F, C, ..].
    """

    name: str
    images: tuple[int, ...]
    filters: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    element: str = "f32"
    last: bool = False
    bias: bool = False
    groups: bool = False
    count: int = 3

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of an image of the result."""
        first = 0 if self.last else 2 if self.groups else 1
        rank = len(self.images) - (2 if self.groups else 1)
        window = self.filters[first if self.last else first + 1 :][:rank]
        sizes = [
            (size - self.dilation * (k - 1) - 1) // self.stride + 1
            for size, k in zip(self.images[first:], window, strict=False)
        ]
        if self.last:
            return (*sizes, self.filters[-1])
        return (*self.filters[: 2 if self.groups else 1], *sizes)

    @property
    def operation(self) -> str:
        letters = "dhw"[4 - len(self.images) :] if not self.groups else "hw"
        form = f"n{letters}c_{letters}cf" if self.last else f"nc{letters}_fc{letters}"
        form = "ngchw_gfchw" if self.groups else form
        return f"conv_{len(letters)}d_{form}"

    @property
    def text(self) -> str:
        def kind(sizes: tuple[int, ...], element: str, batch: str = "") -> str:
            return f"tensor<{batch}{'x'.join(map(str, sizes))}x{element}>"

        images = kind(self.images, self.element, "?x")
        filters = kind(self.filters, self.element)
        result = kind(self.result, "f32", "?x")
        rank = len(self.operation.split("_")[2]) - (3 if self.groups else 2)
        start = "%z = linalg.fill ins(%zero : f32)"
        channel = len(self.result) if self.last else 1
        if self.bias:
            others = [axis for axis in range(len(self.result) + 1) if axis != channel]
            source = f"tensor<{self.filters[-1 if self.last else 0]}xf32>"
            start = f"%z = linalg.broadcast ins(%bias : {source})"
        else:
            source, others = "tensor<1xf32>", []
        dimensions = f" dimensions = {others}" if self.bias else f" -> {result}"
        attributes = (
            f"dilations = dense<{self.dilation}> : tensor<{rank}xi64>, "
            f"strides = dense<{self.stride}> : tensor<{rank}xi64>"
        )
        return f"""
func.func @{self.name}(%x: {images}, %w: {filters}, %bias: {source}) -> {result} {{
  %zero = arith.constant 0.0 : f32
  %c = arith.constant 0 : index
  %n = tensor.dim %x, %c : {images}
  %e = tensor.empty(%n) : {result}
  {start} outs(%e : {result}){dimensions}
  %y = linalg.{self.operation} {{{attributes}}} ins(%x, %w : {images}, {filters})
      outs(%z : {result}) -> {result}
  return %y : {result}
}}
"""

    def draw(self) -> list[Array]:
        """Draw images, filters and bias: small integers, so that every sum is exact."""
        rng = np.random.default_rng(5)
        shapes = (self.count, *self.images), self.filters
        bias = rng.integers(-8, 9, self.filters[-1 if self.last else 0] if self.bias else 1)
        sides = [rng.integers(-8, 9, shape).astype(TYPES[self.element]) for shape in shapes]
        return [*sides, bias.astype(np.float32)]

    def wanted(self, given: list[Array]) -> Array:
        x, w, bias = (torch.from_numpy(each.astype(np.float32)) for each in given)
        rank = int(self.operation[5])
        if self.last:
            x, w = x.movedim(-1, 1), w.movedim((-1, -2), (0, 1))
        groups = w.shape[0] if self.groups else 1
        if self.groups:
            x, w = x.flatten(1, 2), w.flatten(0, 1)
        convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
        own = bias if self.bias else None
        y = convolve(x, w, own, self.stride, 0, self.dilation, groups)
        y = y.movedim(1, -1) if self.last else y
        return np.asarray(y.reshape(self.count, *self.result))


CASES = [
    Case("plain", (75, 12, 21), (40, 75, 3, 3)),
    Case("bf16", (64, 10, 18), (48, 64, 3, 3), element="bf16"),
    Case("strided", (20, 13, 40), (90, 20, 3, 3), stride=2, bias=True),
    Case("dilated", (16, 12, 12), (32, 16, 3, 2), dilation=2, element="f16"),
    Case("patches", (3, 32, 32), (64, 3, 8, 8), stride=8, element="bf16", bias=True),
    Case("single", (24, 7, 9), (40, 24, 1, 1), bias=True),
    Case("single_strided", (24, 9, 9), (40, 24, 1, 1), stride=2),
    Case("channels_last", (9, 20, 24), (3, 3, 24, 40), last=True, bias=True),
    Case("few_images", (32, 7, 7), (32, 32, 3, 3), count=1),
    Case("line", (30, 50), (20, 30, 5), stride=2),
    Case("line_of_channels", (50, 30), (5, 30, 20), last=True, element="bf16"),
    Case("volume", (8, 5, 6, 20), (16, 8, 2, 3, 3)),
    Case("groups", (2, 12, 9, 18), (2, 24, 12, 3, 3), groups=True),
]


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_numbers(target: str, watched: Callable[..., Any]) -> None:
    compiled = watched("".join(case.text for case in CASES), target=target)
    for case in CASES:
        compiled.seen.clear()
        given = case.draw()
        (found,) = compiled.model.call(case.name, *given)
        np.testing.assert_array_equal(found, case.wanted(given), err_msg=case.name)
        assert any(kernel.name.startswith("mxc_product_") for kernel, _ in compiled.seen), case
        assert not [finding for _, sanitizer in compiled.seen for finding in sanitizer.findings]


#: Cases that become one kernel, because no weights are copied first. Elements are f16, for which
#: all GPUs have a matrix instruction.
ALONE = [
    replace(case, element="f16")
    for case in CASES
    if case.last or case.name in ("single", "single_strided")
]


@pytest.mark.parametrize("target", ["gfx1201", "gfx1250", "gfx1151"])
def test_waves_of_32(target: str) -> None:
    for case in ALONE:
        with new_context():
            module = with_kernels(case.text, target)
            given = case.draw()
            result = case.wanted(given)
            operands = [*given[: 2 + case.bias], np.full(result.size, -1, np.float32)]
            flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in operands]
            lane_interpreter.run(module, flat, [case.count])
        np.testing.assert_array_equal(flat[-1].view(np.float32).reshape(result.shape), result)
