"""The chart of the README says what its table says."""

from pathlib import Path

import speed_chart

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_picture_is_that_of_the_table() -> None:
    drawn = speed_chart.chart(speed_chart.bars(README))
    assert (ROOT / "docs" / "speed.svg").read_text() == drawn, (
        "draw it again: python benchmarks/speed_chart.py"
    )


def test_bars_are_ratios() -> None:
    table = """
| mxfp4 weights of 64 x 64, ms | 1 row | 32 rows |
|---|---|---|
| A: mxc, bf16 activations | 0.5 (84 %) | |
| A: mxc, i8 activations | 0.25 | 2 |
| A: llama.cpp | 1 | 3 |

and so on
"""
    bars = [(b.rows, b.activations, b.times) for b in speed_chart.bars(table)]
    assert bars == [("1 row", "bf16", 2.0), ("1 row", "i8", 4.0), ("32 rows", "i8", 1.5)]
