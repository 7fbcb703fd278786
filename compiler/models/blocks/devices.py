"""Devices that compute one model together (tensor parallelism), and sums over them.

Each device has a share of the heads, of the widths of MLPs and experts, and of the vocabulary. Its
products with columns of weights are whole rows [T, H], which are summed over the devices
(parameters.py: Split). Norms, routers and other small parameters are on every device.

A block is built on each device by a generator, which yields such addends and is sent the sums.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks.parameters import Parameter
from mxc.compiler.models.blocks.primitives import add
from mxc.dialects.devices import promise, transfer
from mxc.errors import CheckpointError

#: A generator that builds a block on one device: it yields addends [T, N] of sums over the devices,
#: is sent the sums, and returns the result of the block, which is the same on all devices.
Steps = Generator[ir.Value, ir.Value, ir.Value]


@dataclass(frozen=True)
class Device:
    """Device `number` of `count`."""

    number: int = 0
    count: int = 1

    @property
    def prefix(self) -> str:
        """The prefix of the names of its parameters and products; "" for a single device."""
        return f"device.{self.number}." if self.count > 1 else ""

    @property
    def affinity(self) -> ir.Attribute | None:
        """The affinity attribute of values on this device; None for a single device."""
        return promise(self.number) if self.count > 1 else None

    def first_of(self, count: int) -> int | None:
        """The first row of this device's `count` rows of a table; None for a single device."""
        return count * self.number if self.count > 1 else None

    def has(self, parameter: Parameter) -> bool:
        """Whether this device has a part of the parameter."""
        return parameter.split != "first" or self.number == 0


def devices_of(count: int) -> tuple[Device, ...]:
    """Return all of `count` devices."""
    return tuple(Device(number, count) for number in range(count))


def on_each(value: ir.Value, devices: Sequence[Device]) -> list[ir.Value]:
    """Copy `value` from the first device; return it on every device."""
    return [value, *(transfer(value, each.number) for each in devices[1:])]


def summed(parts: Sequence[ir.Value], devices: Sequence[Device]) -> list[ir.Value]:
    """Sum parts [T, N], one from each device; return the sum on every device.

    Every device adds in the order of the devices, so that all sums have the same bits.
    """
    found = []
    for device in devices:
        here = [
            part if own.number == device.number else transfer(part, device.number)
            for part, own in zip(parts, devices, strict=True)
        ]
        total = here[0]
        for part in here[1:]:
            total = add(total, part)
        found.append(total)
    return found


def together(blocks: Sequence[Steps], devices: Sequence[Device]) -> list[ir.Value]:
    """Build a block on each device and return its result on each."""
    sums: Sequence[ir.Value | None] = [None] * len(devices)
    while True:
        parts, results = [], []
        for block, total in zip(blocks, sums, strict=True):
            try:
                parts.append(next(block) if total is None else block.send(total))
            except StopIteration as end:
                results.append(end.value)
        if results:
            return results
        sums = summed(parts, devices)


def divided(devices: int, field: str, size: int) -> int:
    """Return size // devices. Raises CheckpointError, naming `field`, where it does not divide."""
    if size % devices:
        raise CheckpointError(
            f"--devices {devices}: {field} is {size}, which does not divide among {devices} "
            "devices; give a number that divides it"
        )
    return size // devices
