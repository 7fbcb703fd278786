"""Draw the chart of the README from its table of speed: ratios to llama.cpp on the same machine.

    python benchmarks/speed_chart.py [--output docs/speed.svg]

The numbers are only in the table; a test compares the picture with it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]

#: Colors of text and axis, legible on white and on dark pages, and of bars by activations.
_TEXT, _AXIS, _COLOURS = "#808080", "#b0b0b0", {"bf16": "#3f51b5", "i8": "#e08a1e"}
_LEFT, _WIDTH, _BAR, _GAP = 190, 620, 14, 6


@dataclass(frozen=True)
class Bar:
    """One bar: how many times as fast as llama.cpp mxc is, in one row and column of the table."""

    machine: str
    rows: str
    activations: str
    times: float


def bars(text: str) -> list[Bar]:
    """Return a bar for each time of mxc in the table of `text`, sorted by machine and rows.

    Its length is the time of llama.cpp on the same machine, in the same column, over mxc's.
    """
    start = text.index("| mxfp4 weights of")
    lines = [line for line in text[start:].split("\n\n")[0].splitlines() if "---" not in line]
    header, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    table = {cells[0]: cells[1:] for cells in body}
    found = []
    for name, cells in table.items():
        machine, _, what = name.partition(": ")
        if what == "llama.cpp":
            continue
        peer = table[f"{machine}: llama.cpp"]
        kind = re.findall(r"(bf16|i8) activations", what)[0]
        for rows, ours, theirs in zip(header[1:], cells, peer, strict=True):
            if ours and theirs:
                times = float(theirs.split()[0]) / float(ours.split()[0])
                found.append(Bar(machine, rows, kind, times))
    return sorted(found, key=lambda bar: (bar.machine, int(bar.rows.split()[0])))


def chart(shown: list[Bar]) -> str:
    """Return the bars as SVG."""
    scale = (_WIDTH - _LEFT - 60) / max(bar.times for bar in shown)
    height = 60 + len(shown) * (_BAR + _GAP)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Products of mxfp4 weights: mxc beside llama.cpp</title>",
        *_legend(),
        *(line for at, bar in enumerate(shown) for line in _bar(at, bar, shown, scale)),
        f'<line x1="{_LEFT + scale:.1f}" x2="{_LEFT + scale:.1f}" y1="40" y2="{height - 12}" '
        f'stroke="{_AXIS}" stroke-dasharray="3 3"/>',
        "</svg>",
        "",
    ])  # fmt: skip


def _legend() -> Iterator[str]:
    yield _text(10, 18, "times as fast as llama.cpp (dashed: as fast)")
    for at, (kind, colour) in enumerate(_COLOURS.items()):
        x = 330 + 130 * at
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, 18, f"{kind} activations")


def _bar(at: int, bar: Bar, shown: list[Bar], scale: float) -> Iterator[str]:
    y = 44 + at * (_BAR + _GAP)
    before = shown[at - 1] if at else None
    if before is None or (before.machine, before.rows) != (bar.machine, bar.rows):
        yield _text(10, y + 11, f"{bar.machine}, {bar.rows}")
    yield (
        f'<rect x="{_LEFT}" y="{y}" width="{bar.times * scale:.1f}" height="{_BAR}" '
        f'fill="{_COLOURS[bar.activations]}"/>'
    )
    yield _text(_LEFT + bar.times * scale + 6, y + 11, f"{bar.times:.1f}")


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{_TEXT}">{escape(text)}</text>'


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the table of speed.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "speed.svg")
    output = parser.parse_args().output
    output.write_text(chart(bars((ROOT / "README.md").read_text())))


if __name__ == "__main__":
    main()
