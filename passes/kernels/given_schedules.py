"""Schedules that the user gives in a JSON file, instead of those that the compiler would choose.

    [{"m": 16, "rhs": "mxfp4", "schedule": ..}]

An entry has a `schedule` and any of `KEYS`, which must equal those of the contraction; m or batch
is null if it comes with each call. The first matching entry is used. The form of a schedule depends
on the pass that reads it. For CPUs it is the text of one of the schedules of the product, or its
number, from the end if negative; for GPUs it is an object, or a list of objects. `device` names the
machine on which the schedule was measured.

These are errors: an entry that matches no contraction, and a number that is out of range. But an
entry without keys need not match, and a number out of range in it selects the first schedule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mxc.dialects.contraction import Contraction
from mxc.errors import PassError

#: The plan of a schedule.
T = TypeVar("T")

#: The properties of a contraction that an entry may specify.
KEYS = ("batch", "m", "n", "k", "lhs", "rhs")


def key_of(of: Contraction) -> dict[str, Any]:
    """The properties that select exactly this contraction."""
    sizes = {"batch": of.batch, "m": of.m, "n": of.n, "k": of.k}
    return {**sizes, "lhs": of.lhs.name, "rhs": of.rhs.name}


class GivenSchedules:
    """The entries of `file`, and which of them were used. The file "" has no entries."""

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

    def choose(self, of: Contraction, plans: Sequence[T]) -> tuple[T, str]:
        """Return the plan among `plans` that an entry gives the contraction, by its text or number,
        and a text about it for the report. Without an entry, return the first plan and "".

        Raises PassError where the entry names none of the plans.
        """
        entry = self.take(of)
        if entry is None:
            return plans[0], ""
        wanted, device = entry["schedule"], entry.get("device")
        if isinstance(wanted, int):
            # In an entry for all products, the number may be out of range for some of them.
            reached = -len(plans) <= wanted < len(plans)
            if not reached and any(key in entry for key in KEYS):
                raise PassError(
                    f"{self.file}: wanted schedule {wanted} of {of.symbol}, which has "
                    f"{len(plans)}, 0 to {len(plans) - 1}"
                )
            wanted = str(plans[wanted if reached else 0])
        found = next((each for each in plans if str(each) == wanted), None)
        if found is None:
            raise PassError(
                f"{self.file}: {of.symbol} has no schedule {wanted!r}; it has "
                + "; ".join(map(str, plans))
            )
        return found, f"{wanted}, measured on {device}" if device else wanted

    def require_taken(self) -> None:
        """Raise PassError where an entry with keys was not used."""
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
