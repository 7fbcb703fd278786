"""Interprets host programs: IREE's VM bytecode, version 17.

The host program of an artifact for a GPU allocates the buffers and dispatches the kernels. It runs
unchanged; the functions that it imports (modules "hal" and "io_parameters") are the Python
functions in `hal.py`. Operations that no host program of mxc uses are refused by number.

Source: compiler/src/iree/compiler/Dialect/VM/IR/VMOpcodesCore.td and
runtime/src/iree/vm/bytecode of IREE 3.13. A 64-bit value is kept in the first of its two registers;
references have separate registers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from mxc.errors import CodeObjectError, RequestError
from mxc.simulator.errors import SimulationError
from mxc.simulator.host.vm_module import HostModule, Import
from mxc.simulator.host.vm_steps import CALLS, STEPS

#: An imported function: positional arguments, with a tuple of values for a variadic one.
HostFunction = Callable[..., Any]

#: Upper limit of a module's bytes of globals and of its references; models have a few hundred.
_GLOBALS = 1 << 24
#: Most nested calls of functions.
_DEEPEST = 100
#: Errors of an operation whose bytecode does not fit its registers.
_MALFORMED = (struct.error, IndexError, TypeError, AttributeError)
_IMPORTED = 0x80000000
_REF = 0x8000


class Machine:
    """Runs the functions of one module, and keeps its globals."""

    def __init__(self, module: HostModule, functions: dict[str, HostFunction]) -> None:
        """functions: imported functions by name, such as "hal.fence.create".

        Raises SimulationError for an import without a function, and CodeObjectError for an
        implausible size of the globals.
        """
        missing = sorted({i.name for i in module.imports} - functions.keys())
        if missing:
            raise SimulationError(
                f"the host program calls {', '.join(missing)}, which the simulator does not provide"
            )
        if not (0 <= module.global_bytes <= _GLOBALS and 0 <= module.global_refs <= _GLOBALS):
            raise CodeObjectError(
                f"the module has {module.global_bytes} bytes and {module.global_refs} references "
                f"of global state, wanted 0 to {_GLOBALS}"
            )
        self.module = module
        self.depth = 0
        self.imports = [functions[i.name] for i in module.imports]
        self.memory = bytearray(module.global_bytes + 8)
        self.refs: list[Any] = [None] * module.global_refs
        if "__init" in module.exports:
            self.call("__init")

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call an exported function."""
        if name not in self.module.exports:
            raise RequestError(f"no function {name!r} in the module")
        return self.run(self.module.exports[name], list(arguments))

    def run(self, number: int, arguments: list[Any]) -> tuple[Any, ...]:
        """Call a function by its number."""
        if number >= len(self.module.functions) or self.depth == _DEEPEST:
            raise SimulationError(
                f"the host program calls function {number} of {len(self.module.functions)}, "
                f"{self.depth} calls deep"
            )
        code = self.module.functions[number]
        self.depth += 1
        try:
            return Frame(self, code.data, code.convention).run(arguments)
        finally:
            self.depth -= 1


class Frame:
    """One call of a function: its registers and its position in the bytecode."""

    def __init__(self, machine: Machine, data: memoryview, convention: str) -> None:
        """Create a call that has not begun."""
        self.machine = machine
        self.data = data
        self.at = 0
        self.values: dict[int, int] = {}
        self.refs: dict[int, Any] = {}
        self.kinds = convention[1:].partition("_")[0].replace("v", "")

    def run(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Execute until the function returns."""
        place = {True: 0, False: 0}
        for kind, argument in zip(self.kinds, arguments, strict=True):
            is_ref = kind == "r"
            if kind == "I":
                place[False] += place[False] & 1
            self.put(place[is_ref] | (_REF if is_ref else 0), argument)
            place[is_ref] += 2 if kind == "I" else 1
        while True:
            operation = self.u8()
            step = STEPS.get(operation)
            if step is None:
                raise SimulationError(
                    f"operation 0x{operation:02x} of the host program is not modelled"
                )
            try:
                found = step(self)
            except _MALFORMED as error:
                if operation in CALLS:
                    raise
                raise SimulationError(
                    f"operation 0x{operation:02x} of the host program, before byte {self.at} of "
                    f"its function, cannot be done: {error}"
                ) from error
            if found is not None:
                return found

    # Reading the bytecode

    def u8(self) -> int:
        """Read the next byte."""
        return self.number("B")

    def number(self, format: str) -> int:
        """Read the next number; format as in the struct module."""
        size = struct.calcsize("<" + format)
        if not 0 <= self.at <= len(self.data) - size:
            raise SimulationError(f"the host program leaves its bytecode at byte {self.at}")
        value = struct.unpack_from("<" + format, self.data, self.at)[0]
        self.at += size
        return int(value)

    def register(self) -> int:
        """Read the next register number."""
        return self.number("H")

    def registers(self) -> list[int]:
        """Read the next list of register numbers."""
        self.at += self.at & 1
        return [self.number("H") for _ in range(self.number("H"))]

    def remap(self) -> list[tuple[int, int]]:
        """Read the next list of register moves (source, target) of a branch."""
        self.at += self.at & 1
        return [(self.number("H"), self.number("H")) for _ in range(self.number("H"))]

    def text(self) -> str:
        """Read the next string."""
        length = self.number("H")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode(errors="replace")

    # Registers

    def get(self, register: int) -> Any:
        """Return a register's value."""
        if register & _REF:
            return self.refs.get(register & 0x3FFF)
        return self.values.get(register & 0x7FFF, 0)

    def put(self, register: int, value: Any) -> None:
        """Set a register."""
        if register & _REF:
            self.refs[register & 0x3FFF] = value
        else:
            self.values[register & 0x7FFF] = value

    def value(self) -> int:
        """Read the next register number and return the number in that register."""
        return self.values.get(self.register() & 0x7FFF, 0)

    def ref(self) -> Any:
        """Read the next register number and return the reference in that register."""
        return self.refs.get(self.register() & 0x3FFF)

    def put_ref(self, value: Any) -> None:
        """Read the next register number and set that reference register."""
        self.refs[self.register() & 0x3FFF] = value

    def put_value(self, value: int) -> None:
        """Read the next register number and set that register."""
        self.values[self.register() & 0x7FFF] = value

    def branch(self, target: int, remap: list[tuple[int, int]]) -> None:
        """Continue at a block after moving its arguments in order.

        Sequential moves suffice, because the compiler swaps arguments through a free register.
        """
        for source, to in remap:
            self.put(to, self.get(source))
        self.at = target

    def invoke(self, function: int, registers: list[int], sizes: list[int] | None) -> Any:
        """Call a function of the module or an imported one; return its results.

        sizes: the number of values of each variadic argument.
        """
        machine = self.machine
        if not function & _IMPORTED:
            return machine.run(function, [self.get(r) for r in registers])
        number = function & ~_IMPORTED
        if number >= len(machine.imports):
            raise SimulationError(f"the host program calls import {number}, which it does not have")
        declared: Import = machine.module.imports[number]
        arguments = list(_arguments(declared, iter(map(self.get, registers)), sizes))
        found = machine.imports[number](*arguments)
        return found if isinstance(found, tuple) else () if found is None else (found,)


def _arguments(declared: Import, values: Iterator[Any], sizes: list[int] | None) -> Iterator[Any]:
    """Group values by the calling convention: "rC(ir)D" is one value and a tuple of pairs."""
    kinds = declared.convention[1:].partition("_")[0].replace("v", "")
    place = 0
    n = 0
    while place < len(kinds):
        if kinds[place] == "C":
            end = kinds.index("D", place)
            width = end - place - 1
            count = sizes[n] if sizes is not None else 0
            rows = [tuple(next(values) for _ in range(width)) for _ in range(count)]
            yield tuple(row[0] for row in rows) if width == 1 else tuple(rows)
            place = end
        else:
            yield next(values)
        place += 1
        n += 1
