"""Several devices in one program: where a value is, and how it comes to another device.

    util.global private @"device1.norm" {stream.affinity = #hal.device.promise<@device1>} = ..
    %there = flow.tensor.transfer %x : tensor<?x64xf32>{%n} to #hal.device.promise<@device1>

IREE finds by these on which device each operation is. Devices are globals that it makes of
`--iree-hal-target-device=device0=..`.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.sizes import dynamic_sizes

#: Attributes with the device: of a `util.global`, and of an argument or a result of a function.
GLOBAL_AFFINITY, ABI_AFFINITY = "stream.affinity", "iree.abi.affinity"

#: What moves a tensor to another device.
TRANSFER = "flow.tensor.transfer"


def device_name(number: int) -> str:
    """What a program calls a device."""
    return f"device{number}"


def promise(number: int) -> ir.Attribute:
    """The attribute that means device `number`."""
    return ir.Attribute.parse(f"#hal.device.promise<@{device_name(number)}>")


def transfer(value: ir.Value, number: int) -> ir.Value:
    """A tensor on device `number`."""
    made = ir.Operation.create(
        TRANSFER,
        results=[value.type],
        operands=[value, *dynamic_sizes(value)],
        attributes={"target": promise(number)},
    )
    return made.result
