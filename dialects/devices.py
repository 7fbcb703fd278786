"""Several devices in one program: the device of a value, and transfers between devices.

    util.global private @"device1.norm" {stream.affinity = #hal.device.promise<@device1>} = ..
    %there = flow.tensor.transfer %x : tensor<?x64xf32>{%n} to #hal.device.promise<@device1>

IREE derives the device of each operation from these. Devices are globals that IREE makes of
`--iree-hal-target-device=device0=..`.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.sizes import dynamic_sizes

#: Attributes that hold the device: of a `util.global`, and of an argument or a result of a
#: function.
GLOBAL_AFFINITY, ABI_AFFINITY = "stream.affinity", "iree.abi.affinity"

#: The operation that moves a tensor to another device.
TRANSFER = "flow.tensor.transfer"


def device_name(number: int) -> str:
    """The name of device `number` in a program."""
    return f"device{number}"


def promise(number: int) -> ir.Attribute:
    """The attribute that refers to device `number`."""
    return ir.Attribute.parse(f"#hal.device.promise<@{device_name(number)}>")


def transfer(value: ir.Value, number: int) -> ir.Value:
    """Transfer a tensor to device `number`."""
    made = ir.Operation.create(
        TRANSFER,
        results=[value.type],
        operands=[value, *dynamic_sizes(value)],
        attributes={"target": promise(number)},
    )
    return made.result
