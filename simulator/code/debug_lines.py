"""Reads DWARF line tables, which map instructions to source lines.

Source: DWARF Debugging Information Format, versions 2 to 5, section 6.2, Line Number Information.
The compiler writes a table with `-g`, for kernels whose functions have debug information.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from mxc.errors import CodeObjectError

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN = 1, 2, 3, 4, 5
_NEGATE, _BASIC_BLOCK, _CONST_ADD, _FIXED_ADVANCE = 6, 7, 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_PATH, _DIRECTORY = 1, 2
#: Bytes of the forms with a fixed size.
_FIXED = {0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x1E: 16, 0x17: 4}
_STRING, _BLOCK, _SDATA, _UDATA, _STRP, _LINE_STRP = 0x08, 0x09, 0x0D, 0x0F, 0x0E, 0x1F


class LineTable(Mapping[int, str]):
    """File and line by address; an instruction has the last row at or before it."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        """rows: (address, place), with the place "" where a sequence ends."""
        ordered = sorted(dict(rows).items())
        self._addresses = [address for address, _ in ordered]
        self._places = [place for _, place in ordered]

    def __getitem__(self, address: int) -> str:
        """Return the place of the instruction at an address."""
        n = bisect_right(self._addresses, address) - 1
        if n < 0 or not self._places[n]:
            raise KeyError(address)
        return self._places[n]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the addresses of rows with a place."""
        pairs = zip(self._addresses, self._places, strict=True)
        return (address for address, place in pairs if place)

    def __len__(self) -> int:
        """Return the number of rows with a place."""
        return sum(map(bool, self._places))


def read_lines(table: bytes, line_strings: bytes, strings: bytes) -> LineTable:
    """Read `.debug_line` with the strings of `.debug_line_str` and `.debug_str`.

    Raises CodeObjectError for a malformed table; a missing table has no rows.
    """
    rows: list[tuple[int, str]] = []
    at = 0
    try:
        while at < len(table):
            unit = _Unit(_Bytes(table, at, len(table)), {_LINE_STRP: line_strings, _STRP: strings})
            rows += unit.rows()
            at = unit.end
    except (IndexError, struct.error) as error:
        raise CodeObjectError(f".debug_line is malformed ({error})") from error
    return LineTable(rows)


class _Bytes:
    """A reader of consecutive bytes; raises IndexError beyond their end."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def number(self, format: str) -> int:
        size = struct.calcsize("<" + format)
        if self.at + size > self.end:
            raise IndexError("it ends within a number")
        self.at += size
        return int(struct.unpack_from("<" + format, self.data, self.at - size)[0])

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value
            if shift > 70:
                raise IndexError("a number is too long")

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def text(self) -> str:
        stop = self.data.find(b"\0", self.at, self.end)
        if stop < 0:
            raise IndexError("it ends within a string")
        found = self.data[self.at : stop].decode(errors="replace")
        self.at = stop + 1
        return found

    def pass_over(self, count: int) -> None:
        if count < 0 or self.at + count > self.end:
            raise IndexError("a length lies outside of it")
        self.at += count


class _Unit:
    """The table of one compilation unit."""

    def __init__(self, data: _Bytes, strings: dict[int, bytes]) -> None:
        self.data, self.strings = data, strings
        length = data.number("I")
        if length >= 0xFFFFFFF0:
            raise IndexError("64-bit DWARF")
        self.end = data.at + length
        if self.end > data.end:
            raise IndexError("a unit lies outside of it")
        data.end = self.end
        self.version = data.number("H")
        if not 2 <= self.version <= 5:
            raise IndexError(f"version {self.version}")
        if self.version >= 5:
            data.pass_over(2)
        program = data.number("I") + data.at
        self.unit = data.number("B")
        if self.version >= 4:
            data.pass_over(1)
        data.pass_over(1)
        self.line_base, self.line_range = data.number("b"), data.number("B")
        self.opcode_base = data.number("B")
        self.lengths = [data.number("B") for _ in range(max(0, self.opcode_base - 1))]
        self.files = self._files() if self.version >= 5 else self._old_files()
        if not self.line_range or not data.at <= program <= self.end:
            raise IndexError("its header does not fit")
        data.at = program

    def _old_files(self) -> list[str]:
        while self.data.text():
            pass
        # File 0 is the file of the unit, which the line table does not name.
        files = [""]
        while name := self.data.text():
            files.append(name)
            for _ in range(3):
                self.data.unsigned()
        return files

    def _files(self) -> list[str]:
        self._entries()
        return self._entries()

    def _entries(self) -> list[str]:
        data = self.data
        formats = [(data.unsigned(), data.unsigned()) for _ in range(data.number("B"))]
        count = data.unsigned()
        if count and (not formats or count > data.end - data.at):
            raise IndexError("more files than it has bytes")
        names = []
        for _ in range(count):
            name = ""
            for content, form in formats:
                value = self._value(form)
                name = value if content == _PATH else name
            names.append(name)
        return names

    def _value(self, form: int) -> str:
        data = self.data
        if form == _STRING:
            return data.text()
        if form in (_STRP, _LINE_STRP):
            strings = self.strings[form]
            return _Bytes(strings, data.number("I"), len(strings)).text()
        if form in (_UDATA, _SDATA):
            data.unsigned()
        elif form == _BLOCK:
            data.pass_over(data.unsigned())
        elif form in _FIXED:
            data.pass_over(_FIXED[form])
        else:
            raise IndexError(f"form 0x{form:x}")
        return ""

    def rows(self) -> list[tuple[int, str]]:
        """Run the line number program and return its rows."""
        data, found = self.data, []
        address, file, line = 0, 1, 1
        while data.at < self.end:
            operation = data.number("B")
            emits = operation >= self.opcode_base
            if emits:
                steps, lines = divmod(operation - self.opcode_base, self.line_range)
                address += steps * self.unit
                line += self.line_base + lines
            elif operation == 0:
                size = data.unsigned()
                after = data.at + size
                kind = data.number("B") if size else 0
                if kind == _SET_ADDRESS:
                    address = data.number("Q")
                data.at = min(data.at, after)
                data.pass_over(after - data.at)
                if kind == _END_SEQUENCE:
                    found.append((address, ""))
                    address, file, line = 0, 1, 1
            elif operation == _COPY:
                emits = True
            elif operation == _ADVANCE_PC:
                address += data.unsigned() * self.unit
            elif operation == _ADVANCE_LINE:
                line += data.signed()
            elif operation == _SET_FILE:
                file = data.unsigned()
            elif operation == _CONST_ADD:
                address += (255 - self.opcode_base) // self.line_range * self.unit
            elif operation == _FIXED_ADVANCE:
                address += data.number("H")
            else:
                for _ in range(self.lengths[operation - 1]):
                    data.unsigned()
            if emits:
                found.append((address, self._place(file, line)))
        return found

    def _place(self, file: int, line: int) -> str:
        # Line 0 marks instructions that belong to no source line.
        name = self.files[file] if file < len(self.files) else ""
        return f"{name}:{line}" if name and line > 0 else ""
