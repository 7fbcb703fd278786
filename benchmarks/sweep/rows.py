"""A row of the table: the figures of a server under one load, and the wanted figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sweep.clients import Answer

#: Number of clients -> least ratio of the first server's tokens/s to another server's; and the
#: least ratio for other numbers of clients.
WANTED, LEAST = {16: 3.0}, 1.0

HEAD = (
    f"{'arrivals':<11} {'prompt':>9} {'server':<13} {'answers':>7} {'tokens/s':>8} "
    f"{'TTFT ms 50/99 %':>16} {'TPOT ms 50/99 %':>17} {'times':>5}"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One load on one server. `clients` or `rate` (requests per second) is None.

    `answers`: number of answers without an error. `tokens`: generated ones. `first`: time to the
    first token, and `between`: time between tokens, both in seconds as (median, 99th percentile),
    or None without an answer.
    """

    clients: int | None
    rate: float | None
    prompt: str
    server: str
    answers: int
    seconds: float
    tokens: int
    prompt_tokens: int
    first: tuple[float, float] | None
    between: tuple[float, float] | None
    errors: tuple[str, ...]

    @property
    def arrivals(self) -> str:
        """The load as the table shows it: number of clients, or requests per second."""
        return f"{self.clients} clients" if self.rate is None else f"{self.rate:g}/s"

    @property
    def per_second(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for --json, with tokens per second."""
        return {**asdict(self), "tokens_per_second": self.per_second}

    def times(self, first: Row) -> float | None:
        """Return the ratio of the first server's tokens/s to this one's; None without tokens."""
        return first.per_second / self.per_second if self.tokens else None

    def line(self, first: Row | None) -> str:
        """Return a line of the table. `first`: the first server's row; None if this is that row."""
        times = None if first is None else self.times(first)
        shown = "" if times is None else f"{times:.2f}"
        text = (
            f"{self.arrivals:<11} {self.prompt:>9} {self.server[:13]:<13} {self.answers:>7} "
            f"{self.per_second:>8.1f} {_both(self.first, 0):>16} {_both(self.between, 1):>17} "
            f"{shown:>5}"
        )
        lines = [text.rstrip(), *(f"    errors: {error[:80]}" for error in self.errors)]
        return "\n".join(lines)


def row(answers: Sequence[Answer], **given: Any) -> Row:
    """Return the row for the answers to a load. `given`: the fields that answers do not give."""
    good = [each for each in answers if each.error is None]
    several = [each for each in good if each.tokens > 1]
    between = [(e.arrivals[-1] - e.arrivals[0]) / (e.tokens - 1) for e in several]
    failed = [each.error for each in answers if each.error is not None]
    return Row(
        answers=len(good),
        tokens=sum(each.tokens for each in good),
        prompt_tokens=sum(each.prompt for each in good),
        first=_percentiles([each.arrivals[0] for each in good]),
        between=_percentiles(between),
        errors=tuple(f"{failed.count(error)} x {error}" for error in sorted({*failed})),
        **given,
    )


def checks(rows: Iterable[Row]) -> list[tuple[str, bool]]:
    """Return the checks of the first server against each other one, and whether each passes.

    - With a number of clients, tokens/s are at least WANTED times the other's. With random arrivals
      this is not checked, because the arrivals bound the tokens/s.
    - The 99th percentile of the time to the first token is no longer than the other's.
    - The first server makes no errors.
    """
    found = []
    loads: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        loads.setdefault((each.arrivals, each.prompt), []).append(each)
    for (arrivals, prompt), (first, *others) in loads.items():
        for other in others:
            where = f"{arrivals}, prompts of {prompt}"
            times = other.times(first)
            if times is not None and first.clients is not None:
                least = WANTED.get(first.clients, LEAST)
                text = f"{where}: {times:.2f} times the tokens/s of {other.server}"
                found.append((f"{text} (wanted {least:g})", times >= least))
            if first.first is not None and other.first is not None:
                mine, theirs = first.first[1] * 1e3, other.first[1] * 1e3
                text = f"{where}: 99 % of first tokens in {mine:.0f} ms, {theirs:.0f} of"
                found.append((f"{text} {other.server}", mine <= theirs))
        if first.errors:
            found.append((f"{arrivals}, prompts of {prompt}: errors of {first.server}", False))
    return found


def _percentiles(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    half, most = np.percentile(values, (50, 99))
    return float(half), float(most)


def _both(values: tuple[float, float] | None, digits: int) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{value * 1e3:.{digits}f}" for value in values)
