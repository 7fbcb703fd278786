"""benchmarks/serve.py: its rows, on a server whose second turns are not computed again."""

import asyncio
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from running import Running

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import serve


def rows(running: Running, capsys: pytest.CaptureFixture[str], **given: object) -> list[list[str]]:
    """Cells of the table, without its head."""
    usual = {"model": None, "key": "none", "clients": [1, 3], "rate": None, "prompt": [40]}
    usual |= {"generate": 4, "requests": None, "seconds": None, "turns": False, "vocabulary": 256}
    asyncio.run(serve.measure(Namespace(url=running.url, **{**usual, "seed": 0, **given})))
    lines = capsys.readouterr().out.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_clients_and_rates(random: Running, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(random, capsys)
    assert [(row[0], int(row[2])) for row in found] == [("1 clients", 8), ("3 clients", 12)]
    found += rows(random, capsys, rate=[50.0], requests=5)
    assert found[-1][:3] == ["50/s", "40", "5"]
    found += rows(random, capsys, clients=[2], seconds=0.3)
    assert int(found[-1][2]) >= 2
    for row in found:
        assert float(row[3]) > 0
        assert row[-1] == "-"


def test_no_prompt_is_shared(random: Running, capsys: pytest.CaptureFixture[str]) -> None:
    before = random.model.engine.counts.cached_tokens
    rows(random, capsys, clients=[1, 3], seed=7)
    assert random.model.engine.counts.cached_tokens == before


def test_turns(random: Running, capsys: pytest.CaptureFixture[str]) -> None:
    before = random.model.engine.counts.cached_tokens
    (row,) = rows(random, capsys, turns=True, prompt=[100], requests=3, seed=9)
    assert row[:2] == ["100", "3"]
    assert float(row[4]) > 0
    size = random.model.engine.model.page_size
    assert random.model.engine.counts.cached_tokens - before == 3 * (100 // size * size)
