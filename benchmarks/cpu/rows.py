"""A row of the table: the figures of one product, the wanted figures, and whether they are met."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from problems import Shape
from repetitions import Time


@dataclass(frozen=True)
class Wanted:
    """Wanted figures of a product; None: nothing is wanted.

    `peer`: ratio to the peer's speed. `limit`: share of the limit, which is DRAM read for one row
    and else the peak of the mode's instruction.
    """

    peer: float | None = None
    limit: float | None = None


def wanted(mode: str, m: int, *, tiles: bool = False) -> Wanted:
    """Return what is wanted of a product of `m` rows. `tiles`: whether AMX multiplies bf16."""
    if tiles and mode == "bf16" and m >= 32:
        return Wanted(peer=10, limit=0.6) if m >= 128 else Wanted(peer=1.5, limit=0.25)
    if mode == "f32":
        return Wanted(limit=0.7) if m >= 128 else Wanted()
    if m == 1:
        return Wanted(peer=1.15, limit=0.85)
    if m < 32:
        return Wanted(peer={"i8": 2.0, "bf16": 1.4}[mode])
    return {"i8": Wanted(peer=2.2, limit=0.6), "bf16": Wanted(peer=1.5, limit=0.8)}[mode]


@dataclass(frozen=True)
class Row:
    """One product: times of mxc (`ours`) and of the peer, and the relative errors of both.

    `limit`: what this machine can do, 1e9 bytes a second if m is 1, else 1e9 operations a second;
    None if the CPU lacks the mode's instruction. `tiles`: whether the machine multiplies bf16 by
    AMX tiles.
    """

    shape: Shape
    m: int
    mode: str
    ours: Time
    peer: Time | None
    error: float
    peer_error: float | None
    limit: float | None = None
    tiles: bool = False

    @property
    def gflops(self) -> float:
        """1e9 operations a second."""
        return self.shape.operations(self.m) / self.ours.least / 1e9

    @property
    def gb_per_second(self) -> float:
        """Rate at which weights are read, in 1e9 bytes a second."""
        return self.shape.bytes / self.ours.least / 1e9

    @property
    def of_peer(self) -> float | None:
        return None if self.peer is None else self.peer.least / self.ours.least

    @property
    def of_limit(self) -> float | None:
        rate = self.gb_per_second if self.m == 1 else self.gflops
        return None if self.limit is None else rate / self.limit

    @property
    def passes(self) -> bool | None:
        """Whether the row is as wanted; None if nothing is wanted, or a wanted figure is unknown
        (no peer, no limit) and no other one is missed."""
        want = wanted(self.mode, self.m, tiles=self.tiles)
        pairs = [(want.peer, self.of_peer), (want.limit, self.of_limit)]
        known = [found >= least for least, found in pairs if least is not None and found]
        missing = any(least is not None and found is None for least, found in pairs)
        if not all(known):
            return False
        return None if missing or not known else True

    def to_dict(self) -> dict[str, Any]:
        return {
            "shape": str(self.shape),
            "m": self.m,
            "mode": self.mode,
            "ms": 1e3 * self.ours.least,
            "median_ms": 1e3 * self.ours.median,
            "peer_ms": None if self.peer is None else 1e3 * self.peer.least,
            "gflops": self.gflops,
            "gb_per_second": self.gb_per_second,
            "of_peer": self.of_peer,
            "of_limit": self.of_limit,
            "wanted": asdict(wanted(self.mode, self.m, tiles=self.tiles)),
            "error": self.error,
            "peer_error": self.peer_error,
            "passes": self.passes,
        }


HEADER = (
    f"{'n x k':>11}{'m':>5} {'mode':<5}{'ms':>9}{'peer ms':>9}{'GFLOP/s':>9}{'GB/s':>7}"
    f"{'x peer':>8}{'wanted':>8}{'of limit':>10}{'wanted':>8}{'error':>9}{'peer':>9}"
)


def show_row(row: Row) -> None:
    """Print one line of the table."""
    want = wanted(row.mode, row.m, tiles=row.tiles)
    verdict = {True: "pass", False: "FAIL", None: ""}[row.passes]
    print(
        f"{row.shape!s:>11}{row.m:5} {row.mode:<5}{1e3 * row.ours.least:9.3f}"
        f"{_cell(None if row.peer is None else 1e3 * row.peer.least, '9.3f')}{row.gflops:9.0f}"
        f"{row.gb_per_second:7.1f}{_cell(row.of_peer, '8.2f')}{_cell(want.peer, '8.2f')}"
        f"{_cell(row.of_limit, '10.0%')}{_cell(want.limit, '8.0%')}"
        f"{row.error:9.1e}{_cell(row.peer_error, '9.1e')}  {verdict}"
    )


def _cell(value: float | None, form: str) -> str:
    return f"{'-':>{form.split('.')[0]}}" if value is None else f"{value:{form}}"
