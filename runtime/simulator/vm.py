"""The host program: an interpreter of IREE's VM bytecode, version 17.

The host program of an artifact for gfx950 says which buffers are made, which kernels run with
which arguments and how often. It is run as it is; only the functions that it imports (module
"hal" and "io_parameters") are Python functions, in `hal.py`. Operations that no host program of
ours has are refused by number.

Source: compiler/src/iree/compiler/Dialect/VM/IR/VMOpcodesCore.td and
runtime/src/iree/vm/bytecode of IREE 3.13. Values of 64 bits are kept in the first of their two
registers, references in registers of their own.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator
from typing import Any

from mxc.dialects.errors import RequestError
from mxc.runtime.simulator.errors import SimulationError
from mxc.runtime.simulator.vm_module import HostModule, Import

#: What a host program calls: positional arguments; a tuple of values for a variadic one.
HostFunction = Callable[..., Any]

_IMPORTED = 0x80000000
_MASK32, _MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_REF = 0x8000


def signed32(value: int) -> int:
    """The value modulo 2**32, as int32."""
    value &= _MASK32
    return value - ((value & 0x80000000) << 1)


def signed64(value: int) -> int:
    """The value modulo 2**64, as int64."""
    value &= _MASK64
    return value - ((value & (1 << 63)) << 1)


class Machine:
    """Runs the functions of one module; keeps its globals."""

    def __init__(self, module: HostModule, functions: dict[str, HostFunction]) -> None:
        """functions: by the names of the imports, "hal.fence.create".

        Raises SimulationError for an import that there is no function for.
        """
        missing = sorted({i.name for i in module.imports} - functions.keys())
        if missing:
            raise SimulationError(
                f"the host program calls {', '.join(missing)}, which the simulator does not provide"
            )
        self.module = module
        self.imports = [functions[i.name] for i in module.imports]
        self.memory = bytearray(max(module.global_bytes, 0) + 8)
        self.refs: list[Any] = [None] * max(module.global_refs, 0)
        if "__init" in module.exports:
            self.call("__init")

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call an exported function."""
        if name not in self.module.exports:
            raise RequestError(f"no function {name!r} in the module")
        return self.run(self.module.exports[name], list(arguments))

    def run(self, number: int, arguments: list[Any]) -> tuple[Any, ...]:
        """Call a function by its number."""
        code = self.module.functions[number]
        return _Frame(self, code.data, code.convention).run(arguments)


class _Frame:
    """One call: registers and the place in the bytecode."""

    def __init__(self, machine: Machine, data: memoryview, convention: str) -> None:
        self.machine = machine
        self.data = data
        self.at = 0
        self.values: dict[int, int] = {}
        self.refs: dict[int, Any] = {}
        self.kinds = convention[1:].partition("_")[0].replace("v", "")

    def run(self, arguments: list[Any]) -> tuple[Any, ...]:
        place = {True: 0, False: 0}
        for kind, argument in zip(self.kinds, arguments, strict=True):
            is_ref = kind == "r"
            if kind == "I":
                place[False] += place[False] & 1
            self.put(place[is_ref] | (_REF if is_ref else 0), argument)
            place[is_ref] += 2 if kind == "I" else 1
        while True:
            operation = self.u8()
            step = _STEPS.get(operation)
            if step is None:
                raise SimulationError(
                    f"operation 0x{operation:02x} of the host program is not modelled"
                )
            found = step(self)
            if found is not None:
                return found

    # Reading the bytecode

    def u8(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, format: str) -> int:
        value = struct.unpack_from("<" + format, self.data, self.at)[0]
        self.at += struct.calcsize(format)
        return int(value)

    def register(self) -> int:
        return self.number("H")

    def registers(self) -> list[int]:
        self.at += self.at & 1
        return [self.number("H") for _ in range(self.number("H"))]

    def remap(self) -> list[tuple[int, int]]:
        self.at += self.at & 1
        return [(self.number("H"), self.number("H")) for _ in range(self.number("H"))]

    def text(self) -> str:
        length = self.number("H")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode(errors="replace")

    # Registers

    def get(self, register: int) -> Any:
        if register & _REF:
            return self.refs.get(register & 0x3FFF)
        return self.values.get(register & 0x7FFF, 0)

    def put(self, register: int, value: Any) -> None:
        if register & _REF:
            self.refs[register & 0x3FFF] = value
        else:
            self.values[register & 0x7FFF] = value

    def value(self) -> int:
        """The number in the register that comes next in the bytecode."""
        return self.values.get(self.register() & 0x7FFF, 0)

    def ref(self) -> Any:
        return self.refs.get(self.register() & 0x3FFF)

    def put_ref(self, value: Any) -> None:
        self.refs[self.register() & 0x3FFF] = value

    def put_value(self, value: int) -> None:
        self.values[self.register() & 0x7FFF] = value

    def branch(self, target: int, remap: list[tuple[int, int]]) -> None:
        moved = [(to, self.get(source)) for source, to in remap]
        for to, value in moved:
            self.put(to, value)
        self.at = target

    def invoke(self, function: int, registers: list[int], sizes: list[int] | None) -> Any:
        machine = self.machine
        if not function & _IMPORTED:
            return machine.run(function, [self.get(r) for r in registers])
        number = function & ~_IMPORTED
        declared: Import = machine.module.imports[number]
        arguments = list(_arguments(declared, iter(map(self.get, registers)), sizes))
        found = machine.imports[number](*arguments)
        return found if isinstance(found, tuple) else () if found is None else (found,)


def _arguments(declared: Import, values: Iterator[Any], sizes: list[int] | None) -> Iterator[Any]:
    """Values as the calling convention groups them: "rC(ir)D" is one value and a tuple of pairs."""
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


Step = Callable[[_Frame], tuple[Any, ...] | None]


def _unary(run: Callable[[int], int], wrap: Callable[[int], int]) -> Step:
    def step(f: _Frame) -> None:
        value = f.value()
        f.put_value(wrap(run(value)))

    return step


def _binary(run: Callable[[int, int], int], wrap: Callable[[int], int]) -> Step:
    def step(f: _Frame) -> None:
        a, b = f.value(), f.value()
        f.put_value(wrap(run(a, b)))

    return step


def _ternary(wrap: Callable[[int], int]) -> Step:
    def step(f: _Frame) -> None:
        a, b, c = f.value(), f.value(), f.value()
        f.put_value(wrap(a * b + c))

    return step


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _unsigned(run: Callable[[int, int], int], mask: int) -> Callable[[int, int], int]:
    return lambda a, b: run(a & mask, b & mask)


def _arithmetic(first: int, mask: int, wrap: Callable[[int], int]) -> dict[int, Step]:
    """add, sub, mul, div, rem and multiply-add of one width, which have consecutive numbers."""
    runs: list[Callable[[int, int], int]] = [
        operator.add,
        operator.sub,
        operator.mul,
        _truncated,
        _unsigned(operator.floordiv, mask),
        lambda a, b: a - b * _truncated(a, b),
        _unsigned(operator.mod, mask),
    ]
    table = {first + n: _binary(run, wrap) for n, run in enumerate(runs)}
    return table | {first + 7: _ternary(wrap)}


def _bits(first: int, wrap: Callable[[int], int]) -> dict[int, Step]:
    """not, and, or, xor."""
    runs = (operator.and_, operator.or_, operator.xor)
    table = {first + 1 + n: _binary(run, wrap) for n, run in enumerate(runs)}
    return table | {first: _unary(operator.invert, wrap)}


def _shifts(first: int, mask: int, wrap: Callable[[int], int]) -> dict[int, Step]:
    bits = mask.bit_length() - 1
    runs: list[Callable[[int, int], int]] = [
        lambda a, n: a << (n & bits),
        lambda a, n: a >> (n & bits),
        lambda a, n: (a & mask) >> (n & bits),
    ]
    return {first + n: _binary(run, wrap) for n, run in enumerate(runs)}


def _compares(first: int, mask: int) -> dict[int, Step]:
    runs: list[Callable[[int, int], int]] = [
        operator.eq,
        operator.ne,
        operator.lt,
        _unsigned(operator.lt, mask),
    ]
    table = {first + n: _binary(run, int) for n, run in enumerate(runs)}
    return table | {first + 4: _unary(bool, int)}


def _extremes(first: int, mask: int, wrap: Callable[[int], int]) -> dict[int, Step]:
    runs: list[Callable[[int, int], int]] = [min, _unsigned(min, mask), max, _unsigned(max, mask)]
    return {first + n: _binary(run, wrap) for n, run in enumerate(runs)}


def _load_global(format: str) -> Step:
    def step(f: _Frame) -> None:
        offset = f.number("I")
        f.put_value(struct.unpack_from("<" + format, f.machine.memory, offset)[0])

    return step


def _store_global(format: str, wrap: Callable[[int], int]) -> Step:
    def step(f: _Frame) -> None:
        offset, value = f.number("I"), f.value()
        struct.pack_into("<" + format, f.machine.memory, offset, wrap(value))

    return step


def _load_ref(f: _Frame) -> None:
    number, _ = f.number("I"), f.number("I")
    f.put_ref(f.machine.refs[number])


def _store_ref(f: _Frame) -> None:
    number, _ = f.number("I"), f.number("I")
    f.machine.refs[number] = f.ref()


def _constant(format: str) -> Step:
    def step(f: _Frame) -> None:
        value = f.number(format) if format else 0
        f.put_value(value)

    return step


def _null(f: _Frame) -> None:
    f.put_ref(None)


def _rodata(f: _Frame) -> None:
    number = f.number("I")
    f.put_ref(f.machine.module.constants[number])


def _discard(f: _Frame) -> None:
    for register in f.registers():
        f.put(register | _REF, None)


def _assign(f: _Frame) -> None:
    value = f.ref()
    f.put_ref(value)


def _cast(f: _Frame) -> None:
    value, _ = f.ref(), f.number("I")
    f.put_ref(value)


def _select(f: _Frame) -> None:
    condition, a, b = f.value(), f.value(), f.value()
    f.put_value(a if condition else b)


def _select_ref(f: _Frame) -> None:
    condition, _, a, b = f.value(), f.number("I"), f.ref(), f.ref()
    f.put_ref(a if condition else b)


def _compare_refs(run: Callable[[Any, Any], bool]) -> Step:
    def step(f: _Frame) -> None:
        a, b = f.ref(), f.ref()
        f.put_value(int(run(a, b)))

    return step


def _present(f: _Frame) -> None:
    value = f.ref()
    f.put_value(int(value is not None))


def _block(_: _Frame) -> None:
    return None


def _branch(f: _Frame) -> None:
    target = f.number("I")
    f.branch(target, f.remap())


def _branch_if(f: _Frame) -> None:
    condition = f.value()
    taken = (f.number("I"), f.remap())
    other = (f.number("I"), f.remap())
    f.branch(*(taken if condition else other))


def _branch_table(f: _Frame) -> None:
    index = f.value() & _MASK32
    other = (f.number("I"), f.remap())
    cases = []
    for _ in range(f.number("H")):
        cases.append((f.number("I"), f.remap()))
    f.branch(*(cases[index] if index < len(cases) else other))


def _call(variadic: bool, resumes: bool) -> Step:
    def step(f: _Frame) -> None:
        function = f.number("I")
        # The number of values of a variadic argument; 0xFFFF for the others.
        sizes = f.registers() if variadic else None
        registers = f.registers()
        resume = f.number("I") if resumes else None
        results = f.registers()
        for register, value in zip(results, f.invoke(function, registers, sizes), strict=True):
            f.put(register, value)
        if resume is not None:
            f.at = resume

    return step


def _return(f: _Frame) -> tuple[Any, ...]:
    return tuple(f.get(register) for register in f.registers())


def _fail(f: _Frame) -> None:
    status, message = f.value(), f.text()
    if status:
        raise RequestError(f"the program failed with status {status}: {message}")


def _new_list(f: _Frame) -> None:
    f.number("I")
    f.value()
    f.put_ref([])


def _reserve(f: _Frame) -> None:
    f.ref()
    f.value()


def _size(f: _Frame) -> None:
    items = f.ref()
    f.put_value(len(items))


def _resize(f: _Frame) -> None:
    items, size = f.ref(), f.value()
    items[:] = (items + [None] * size)[:size]


def _item(f: _Frame) -> None:
    items, index, _ = f.ref(), f.value(), f.number("I")
    f.put_ref(items[index])


def _set_item(f: _Frame) -> None:
    items, index = f.ref(), f.value()
    items[index] = f.ref()


def _resolved(f: _Frame) -> None:
    f.number("I")
    f.put_value(1)


def _load_bytes(format: str) -> Step:
    def step(f: _Frame) -> None:
        buffer, offset = f.ref(), f.value()
        f.put_value(struct.unpack_from("<" + format, buffer, offset)[0])

    return step


_STEPS: dict[int, Step] = {
    0x00: _load_global("i"),
    0x01: _store_global("i", signed32),
    0x04: _load_global("q"),
    0x05: _store_global("q", signed64),
    0x08: _load_ref,
    0x09: _store_ref,
    0x0C: _constant(""),
    0x0D: _constant("i"),
    0x0E: _constant(""),
    0x0F: _constant("q"),
    0x10: _null,
    0x11: _rodata,
    0x12: _new_list,
    0x13: _reserve,
    0x14: _size,
    0x15: _resize,
    0x1A: _item,
    0x1B: _set_item,
    0x1C: _select,
    0x1D: _select,
    0x1E: _select_ref,
    **_arithmetic(0x22, _MASK32, signed32),
    **_arithmetic(0x2A, _MASK64, signed64),
    **_bits(0x32, signed32),
    **_bits(0x36, signed64),
    **_shifts(0x3A, _MASK32, signed32),
    **_shifts(0x3D, _MASK64, signed64),
    0x40: _unary(lambda a: a & 0xFF, int),
    0x41: _unary(lambda a: a & 0xFFFF, int),
    0x42: _unary(int, signed32),
    0x43: _unary(lambda a: (a & 0xFF) - ((a & 0x80) << 1), int),
    0x44: _unary(lambda a: a & 0xFF, int),
    0x45: _unary(lambda a: (a & 0xFFFF) - ((a & 0x8000) << 1), int),
    0x46: _unary(lambda a: a & 0xFFFF, int),
    0x47: _unary(int, int),
    0x48: _unary(lambda a: a & _MASK32, int),
    **_compares(0x49, _MASK32),
    **_compares(0x4E, _MASK64),
    0x53: _compare_refs(operator.is_),
    0x54: _compare_refs(operator.is_not),
    0x55: _present,
    0x56: _branch,
    0x57: _branch_if,
    0x58: _call(False, False),
    0x59: _call(True, False),
    0x5A: _return,
    0x5B: _fail,
    0x5C: _resolved,
    0x62: _load_bytes("B"),
    0x63: _load_bytes("b"),
    0x64: _load_bytes("H"),
    0x65: _load_bytes("h"),
    0x66: _load_bytes("i"),
    0x67: _load_bytes("q"),
    0x77: _unary(abs, signed32),
    0x78: _unary(abs, signed64),
    0x79: _block,
    **_extremes(0x7A, _MASK32, signed32),
    **_extremes(0x7E, _MASK64, signed64),
    0x82: _cast,
    0x83: _branch_table,
    0x85: _discard,
    0x86: _assign,
    0x87: _call(False, True),
    0x88: _call(True, True),
}
