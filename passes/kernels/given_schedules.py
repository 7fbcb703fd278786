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

    def choose(self, of: Contraction, plans: Sequence[T]) -> tuple[T, str]:
        """The plan that a contraction is given, by its text or its number, and the text of the
        report about it; else the first plan, and no text. Raises PassError where it has no such
        plan.
        """
        entry = self.take(of)
        if entry is None:
            return plans[0], ""
        wanted, device = entry["schedule"], entry.get("device")
        if isinstance(wanted, int):
            # An entry for all products may have a number that some of them do not reach.
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
