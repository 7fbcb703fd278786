"""Errors of the simulator."""

from __future__ import annotations

from mxc.errors import MxcError


class SimulationError(MxcError):
    """A kernel that cannot be executed: an instruction that is not modelled, or a fault.

    The message names kernel, address and instruction.
    """


class AssemblyError(MxcError):
    """Assembly text that cannot be read: the message begins with file and line."""
