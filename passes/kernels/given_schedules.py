"""Schedules of the user: a JSON file, which takes precedence over the choice of the compiler.

    [{"m": 16, "rhs": "mxfp4", "schedule": ..}]

An entry has a `schedule` and any of `KEYS`, which must equal those of the contraction; m or batch
is null if it is known at the call only. The first matching entry is used. An entry that matches
nothing is an error, and so is the number of a schedule that its product does not have. An entry
without keys need not match, and such a number in it selects the first schedule. `device` names the
machine on which the schedule was measured. The form of a schedule depends on the pass that reads
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxc.dialects.contraction import Contraction
from mxc.errors import PassError

#: The properties of a contraction that an entry may specify.
KEYS = ("batch", "m", "n", "k", "lhs", "rhs")


def key_of(of: Contraction) -> dict[str, Any]:
    """The properties that select exactly this contraction."""
    sizes = {"batch": of.batch, "m": of.m, "n": of.n, "k": of.k}
    return {**sizes, "lhs": of.lhs.name, "rhs": of.rhs.name}


class GivenSchedules:
    """The entries of `file`, and which of them were used; "" has no entries."""

    def __init__(self, file: str) -> None:
        """Read the file. Raises PassError where it cannot be read or has another form."""
        self.file = file
        self._entries = _read(file) if file else []
        self._taken = [False] * len(self._entries)

    def take(self, of: Contraction) -> Mapping[str, Any] | None:
        """The first entry that matches a contraction, or None; the entry counts as used."""
        known = key_of(of)
        for number, entry in enumerate(self._entries):
            if all(entry[key] == known[key] for key in KEYS if key in entry):
                self._taken[number] = True
                return entry
        return None

    def require_taken(self) -> None:
        """Raise PassError where an entry was not used."""
        for entry, was in zip(self._entries, self._taken, strict=True):
            wanted = ", ".join(f"{key} {entry[key]}" for key in KEYS if key in entry)
            if wanted and not was:
                raise PassError(
                    f"{self.file}: no contraction has {wanted}, or an entry before "
                    "took them all; `mxc report` lists them"
                )


def _read(file: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise PassError(f"{file}: schedules cannot be read ({error})") from error
    allowed = {*KEYS, "schedule", "device"}
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or not set(entry) <= allowed or "schedule" not in entry:
            raise PassError(
                f"{file}: wanted a list of objects with a schedule and any of {', '.join(KEYS)}, "
                f"found {json.dumps(entry)[:100]}"
            )
    return entries if isinstance(entries, list) else [entries]
