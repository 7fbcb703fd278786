"""Times of the layers of models, as a table: which layer has which time, and what is near."""

import json
from dataclasses import asdict
from pathlib import Path

import matrix_times
import pytest
from matrix_rows import Row

from mxc.compiler.report.kernel_time import Time
from mxc.targets.amd import GFX950

#: The bound and one latency of memory are exactly the wanted share of a time.
_JUST = (8.5e-6 + GFX950.memory_latency) / matrix_times.WANTED


def row(name: str, seconds: float, target: str = "gfx950") -> Row:
    """A row whose lower bound is 8.5 us."""
    time = Time(seconds=seconds, model="schedule", bound_seconds=8.5e-6, bound_by="memory")
    return Row(name=name, group="model", target=target, seconds=1.0, time=time)


def test_a_line_for_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row("model llama-3.1-70b q M1 f4xf4", 0.999 * _JUST),
        row("model llama-3.1-70b q M128 f4xf4", 1.001 * _JUST),
        row("model llama-3.1-70b down M1 f4xf4", 17e-6),
        row("model llama-3.1-70b down M1 bf16xf4", 34e-6),
        row("model llama-3.1-70b down M1 f4xf4", 1e-3, "gfx942"),
        row("pair f4xf4", 1e-3),
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in rows))
    monkeypatch.setattr("sys.argv", ["matrix_times.py", str(file)])
    assert matrix_times.main() == 0
    first, second = capsys.readouterr().out.strip().split("\n\n")
    title, columns, q, down, count = first.splitlines()
    assert title == "f4xf4, gfx950: microseconds, share of the lower bound"
    assert columns.split() == ["layer", "M", "=", "1", "M", "=", "128"]
    assert q.split() == ["llama-3.1-70b", "q", "10.9", "78", "%+", "11.0", "78", "%"]
    assert down.split() == ["llama-3.1-70b", "down", "17.0", "50", "%", "-"]
    assert count == "1 of 3 near the bound"
    assert second.splitlines()[2].split() == ["llama-3.1-70b", "down", "34.0", "25", "%"]
