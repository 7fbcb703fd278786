"""Journal of a job: one line of JSON in its hidden folder for each piece that has been written.

A piece in the journal of a killed run is accepted only if its bytes are still in the files: they
are read again and their CRC-32 is compared.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import astuple
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.files.tensors import read_exactly
from mxc.compiler.leftovers import JOURNAL
from mxc.compiler.pieces.piece import CHUNK, Piece
from mxc.errors import CheckpointError


class Journal:
    """The journal of the request `digest` in `folder`, created if needed.

    Raises AssertionError for a journal of another request.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        """Read the finished pieces. A truncated line is ignored."""
        self._folder = folder
        self._done: dict[str, dict[str, Any]] = {}
        path = folder / JOURNAL
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        found = [entry for entry in map(_parsed, lines) if entry is not None]
        if found and found[0].get("request") != digest:
            raise AssertionError(f"{path}: of another request")
        self._done = {entry["piece"]: entry for entry in found[1:] if "piece" in entry}
        self._file = path.open("a", buffering=1)
        # A truncated line stays on a line of its own.
        self._file.write("\n" if lines else "")
        if not found:
            self._file.write(json.dumps({"request": digest}) + "\n")

    def __len__(self) -> int:
        """Return the number of pieces that earlier runs finished."""
        return len(self._done)

    def take(self, piece: Piece) -> dict[str, Any] | None:
        """Return the entry of a finished piece whose bytes are intact; else None."""
        entry = self._done.get(_key(piece))
        if entry is None or self._crc(entry["ranges"]) != entry["crc"]:
            return None
        return entry

    def add(self, piece: Piece, entry: dict[str, Any]) -> None:
        """Record a piece whose bytes are written."""
        self._file.write(json.dumps({"piece": _key(piece), **entry}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _crc(self, ranges: list[tuple[str, int, int]]) -> int | None:
        crc = 0
        for name, offset, size in ranges:
            try:
                handle = os.open(self._folder / name, os.O_RDONLY)
            except OSError:
                return None
            try:
                for start in range(0, size, CHUNK):
                    count = min(CHUNK, size - start)
                    data = read_exactly(handle, offset + start, count, name)
                    crc = zlib.crc32(data.data, crc)
            except CheckpointError:
                return None
            finally:
                os.close(handle)
        return crc


def _key(piece: Piece) -> str:
    return json.dumps(astuple(piece))


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
