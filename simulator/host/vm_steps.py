"""The operations of IREE's VM bytecode, by opcode."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.simulator.host.vm import Frame

_MASK32, _MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_REF = 0x8000


def signed32(value: int) -> int:
    """Wrap a value to int32."""
    value &= _MASK32
    return value - ((value & 0x80000000) << 1)


def signed64(value: int) -> int:
    """Wrap a value to int64."""
    value &= _MASK64
    return value - ((value & (1 << 63)) << 1)


#: An operation; it returns a tuple, the function's results, if the function returns.
Step: TypeAlias = "Callable[[Frame], tuple[Any, ...] | None]"


def _unary(run: Callable[[int], int], wrap: Callable[[int], int]) -> Step:
    def step(f: Frame) -> None:
        value = f.value()
        f.put_value(wrap(run(value)))

    return step


def _binary(run: Callable[[int, int], int], wrap: Callable[[int], int]) -> Step:
    def step(f: Frame) -> None:
        a, b = f.value(), f.value()
        f.put_value(wrap(run(a, b)))

    return step


def _ternary(wrap: Callable[[int], int]) -> Step:
    def step(f: Frame) -> None:
        a, b, c = f.value(), f.value(), f.value()
        f.put_value(wrap(a * b + c))

    return step


def _truncated(a: int, b: int) -> int:
    if not b:
        raise RequestError("the program divides by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _unsigned(run: Callable[[int, int], int], mask: int) -> Callable[[int, int], int]:
    divides = run in (operator.floordiv, operator.mod)

    def unsigned(a: int, b: int) -> int:
        if divides and not b & mask:
            raise RequestError("the program divides by zero")
        return run(a & mask, b & mask)

    return unsigned


def _arithmetic(first: int, mask: int, wrap: Callable[[int], int]) -> dict[int, Step]:
    """Return add, sub, mul, div, rem and multiply-add of one width, with consecutive opcodes."""
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
    """Return not, and, or, xor of one width."""
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
    def step(f: Frame) -> None:
        offset = f.number("I")
        f.put_value(struct.unpack_from("<" + format, f.machine.memory, offset)[0])

    return step


def _store_global(format: str, wrap: Callable[[int], int]) -> Step:
    def step(f: Frame) -> None:
        offset, value = f.number("I"), f.value()
        struct.pack_into("<" + format, f.machine.memory, offset, wrap(value))

    return step


def _load_ref(f: Frame) -> None:
    number, _ = f.number("I"), f.number("I")
    f.put_ref(f.machine.refs[number])


def _store_ref(f: Frame) -> None:
    number, _ = f.number("I"), f.number("I")
    f.machine.refs[number] = f.ref()


def _constant(format: str) -> Step:
    def step(f: Frame) -> None:
        value = f.number(format) if format else 0
        f.put_value(value)

    return step


def _null(f: Frame) -> None:
    f.put_ref(None)


def _rodata(f: Frame) -> None:
    number = f.number("I")
    f.put_ref(f.machine.module.constants[number])


def _discard(f: Frame) -> None:
    for register in f.registers():
        f.put(register | _REF, None)


def _assign(f: Frame) -> None:
    value = f.ref()
    f.put_ref(value)


def _cast(f: Frame) -> None:
    value, _ = f.ref(), f.number("I")
    f.put_ref(value)


def _select(f: Frame) -> None:
    condition, a, b = f.value(), f.value(), f.value()
    f.put_value(a if condition else b)


def _select_ref(f: Frame) -> None:
    condition, _, a, b = f.value(), f.number("I"), f.ref(), f.ref()
    f.put_ref(a if condition else b)


def _compare_refs(run: Callable[[Any, Any], bool]) -> Step:
    def step(f: Frame) -> None:
        a, b = f.ref(), f.ref()
        f.put_value(int(run(a, b)))

    return step


def _present(f: Frame) -> None:
    value = f.ref()
    f.put_value(int(value is not None))


def _block(_: Frame) -> None:
    return None


def _branch(f: Frame) -> None:
    target = f.number("I")
    f.branch(target, f.remap())


def _branch_if(f: Frame) -> None:
    condition = f.value()
    taken = (f.number("I"), f.remap())
    other = (f.number("I"), f.remap())
    f.branch(*(taken if condition else other))


def _branch_table(f: Frame) -> None:
    index = f.value() & _MASK32
    other = (f.number("I"), f.remap())
    cases = []
    for _ in range(f.number("H")):
        cases.append((f.number("I"), f.remap()))
    f.branch(*(cases[index] if index < len(cases) else other))


def _call(variadic: bool, resumes: bool) -> Step:
    def step(f: Frame) -> None:
        function = f.number("I")
        # The number of values of each variadic argument; 0xFFFF for other arguments.
        sizes = f.registers() if variadic else None
        registers = f.registers()
        resume = f.number("I") if resumes else None
        results = f.registers()
        for register, value in zip(results, f.invoke(function, registers, sizes), strict=True):
            f.put(register, value)
        if resume is not None:
            f.at = resume

    return step


def _return(f: Frame) -> tuple[Any, ...]:
    return tuple(f.get(register) for register in f.registers())


def _fail(f: Frame) -> None:
    status, message = f.value(), f.text()
    if status:
        raise RequestError(f"the program failed with status {status}: {message}")


def _new_list(f: Frame) -> None:
    f.number("I")
    f.value()
    f.put_ref([])


def _reserve(f: Frame) -> None:
    f.ref()
    f.value()


def _size(f: Frame) -> None:
    items = f.ref()
    f.put_value(len(items))


def _resize(f: Frame) -> None:
    items, size = f.ref(), f.value()
    items[:] = (items + [None] * size)[:size]


def _item(f: Frame) -> None:
    items, index, _ = f.ref(), f.value(), f.number("I")
    f.put_ref(items[index])


def _set_item(f: Frame) -> None:
    items, index = f.ref(), f.value()
    items[index] = f.ref()


def _resolved(f: Frame) -> None:
    f.number("I")
    f.put_value(1)


def _load_bytes(format: str) -> Step:
    def step(f: Frame) -> None:
        buffer, offset = f.ref(), f.value()
        f.put_value(struct.unpack_from("<" + format, buffer, offset)[0])

    return step


#: Operations that call functions, whose errors are passed on unchanged.
CALLS = frozenset((0x58, 0x59, 0x87, 0x88))

STEPS: dict[int, Step] = {
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
