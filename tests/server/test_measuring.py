"""benchmarks/serve.py: its rows, on a server whose second turns are not computed again."""

import asyncio
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import serve
from sweep.clients import Answer, Lengths
from sweep.rows import HEAD, Row, checks, row
from sweep.servers import Server, ServerFailed, servers

from tests.server.running import Running


def words(**given: object) -> Namespace:
    usual: dict[str, object] = {
        "model": None,
        "key": "none",
        "clients": [1, 3],
        "rate": None,
        "generate": 4,
    }
    usual |= {"prompt": [Lengths(40, 40)], "requests": None, "rounds": 4, "seconds": None}
    usual |= {"vocabulary": 256, "json": False, "seed": 0}
    return Namespace(**usual | given)


def rows(running: Running, **given: object) -> list[Row]:
    found = [Server("tiny", running.url)]
    return asyncio.run(serve.measure(words(**given), found))


def test_clients_and_rates(random: Running, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(random, rate=[50.0], requests=None)
    assert [(each.arrivals, each.answers) for each in found] == [
        ("1 clients", 8), ("3 clients", 12), ("50/s", 200),
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == HEAD
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    found += rows(random, clients=[2], seconds=0.3)
    assert found[-1].answers >= 2
    for each in found:
        assert each.prompt_tokens == 40 * each.answers
        assert each.per_second > 0
        assert not each.errors


def test_lengths_are_drawn(random: Running) -> None:
    (found,) = rows(random, clients=[2], prompt=[Lengths.parse("8-120")])
    assert 8 * found.answers < found.prompt_tokens < 120 * found.answers
    drawn = [Lengths(32, 2048).draw(str(number)) for number in range(2000)]
    assert 32 <= min(drawn) < 34
    assert 1950 < max(drawn) <= 2048
    # As many below the geometric mean as above it.
    assert 900 < sum(length < 256 for length in drawn) < 1100
    with pytest.raises(ValueError, match="wanted a number of tokens"):
        Lengths.parse("64-32")


def test_no_prompt_is_shared(random: Running) -> None:
    before = random.model.engine.counts.cached_tokens
    rows(random, clients=[1, 3], seed=7)
    assert random.model.engine.counts.cached_tokens == before


def test_turns(random: Running, capsys: pytest.CaptureFixture[str]) -> None:
    before = random.model.engine.counts.cached_tokens
    given = words(prompt=[Lengths(100, 100)], requests=3, seed=9)
    asyncio.run(serve.turns(given, Server("tiny", random.url)))
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")]
    assert cells[1:3] == ["100", "3"]
    assert float(cells[5]) > 0
    size = random.model.engine.model.page_size
    assert random.model.engine.counts.cached_tokens - before == 3 * (100 // size * size)


def answers(count: int, first: float) -> list[Answer]:
    return [Answer(32, [first, first + 0.5], 6) for _ in range(count)]


def compared(clients: int | None, mine: float, theirs: float, seconds: float) -> list[bool]:
    """Checks of two servers: times to their first tokens; `seconds` of the other one's row."""
    given: dict[str, Any] = {"clients": clients, "rate": None if clients else 2.0, "prompt": "32"}
    both = [
        row(answers(4, mine), server="mxc", seconds=1.0, **given),
        row(answers(4, theirs), server="other", seconds=seconds, **given),
    ]
    return [passes for _, passes in checks(both)]


def test_what_is_wanted() -> None:
    """More tokens/s, of 16 clients 3 times, and no longer until the first token."""
    assert compared(4, 0.1, 0.2, 1.01) == [True, True]
    assert compared(4, 0.1, 0.2, 0.9) == [False, True]
    assert compared(16, 0.1, 0.2, 2.9) == [False, True]
    assert compared(16, 0.3, 0.2, 3.1) == [True, False]
    # What random arrivals bring is what a server that keeps up generates.
    assert compared(None, 0.1, 0.2, 0.5) == [True]


def test_a_row() -> None:
    given: dict[str, Any] = {"clients": 2, "rate": None, "prompt": "32", "server": "mxc"}
    mixed = [*answers(99, 0.2), Answer(32, [1.2, 1.7], 6), Answer(32, error="503")]
    found = row(mixed, seconds=4.0, **given)
    assert (found.answers, found.tokens, found.per_second) == (100, 600, 150.0)
    assert found.first == pytest.approx((0.2, 0.21))
    assert found.between == pytest.approx((0.1, 0.1))
    assert found.errors == ("1 x 503",)
    assert found.line(None).endswith("errors: 1 x 503")
    assert [passes for _, passes in checks([found])] == [False]
    assert row([Answer(32, error="x")], seconds=1.0, **given).first is None


#: A server of the interface, whose answers have three tokens.
FAKE = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"data": [{"id": "fake"}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for text in "abc":
            event = {"choices": [{"text": text}], "usage": {"completion_tokens": 3}}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *given):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def stopped(server: Server, wanted: bool) -> bool:
    """Whether the system says so of its process, which a signal reaches after a moment."""
    assert server.process is not None
    stat = Path(f"/proc/{server.process.pid}/stat")
    for _ in range(100):
        if (stat.read_text().rpartition(")")[2].split()[0] == "T") is wanted:
            return True
        time.sleep(0.05)
    return False


def test_commands_alternate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    command = f"{sys.executable} {fake} {{port}} {{threads}}"
    with servers([f"one={command}", f"two={command}"], 3) as found:
        assert [server.name for server in found] == ["one", "two"]
        assert all(stopped(server, True) for server in found)
        with found[0].running():
            assert stopped(found[0], False)
            assert stopped(found[1], True)
        processes = [server.process for server in found]
    assert all(process is not None and process.poll() is not None for process in processes)
    given = words(servers=[f"one={command}", f"two={command}"], threads=1, turns=False, json=True)
    serve.run(given)
    report = json.loads(capsys.readouterr().out)
    assert [(r["server"], r["clients"], r["tokens"]) for r in report["rows"]] == [
        ("one", 1, 24), ("two", 1, 24), ("one", 3, 36), ("two", 3, 36),
    ]  # fmt: skip
    assert len(report["checks"]) == 4
    assert " cores" in report["others"]


def test_servers_that_do_not_start() -> None:
    broken = f"x={sys.executable} -c 'raise SystemExit(\"no model {{port}}\")'"
    for text, message in (
        (broken, "x ended with 1; it said:\nno model"),
        ("x=/no/such/program {port}", "No such file"),
        ("x=serve", "wanted a URL, NAME=URL, or NAME=COMMAND"),
        ("x=serve {port} {threads}", "wants --threads"),
    ):
        with pytest.raises(ServerFailed, match=message), servers([text], None):
            pass
