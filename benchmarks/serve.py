"""Measure throughput and latencies of servers with OpenAI's API: `mxc serve` and others.

    mxc serve OUT.mxc --port 8000 &
    python benchmarks/serve.py http://127.0.0.1:8000 [--clients 1,4,16,64] [--prompt 32,512,2048]
    python benchmarks/serve.py http://127.0.0.1:8000 --rate 2,8
    python benchmarks/serve.py http://127.0.0.1:8000 --turns --prompt 2000

    python benchmarks/serve.py --threads 2 --clients 1,4,16,64 --rate 0.5 --prompt 32-2048 \\
        'mxc=mxc serve OUT.mxc --threads {threads} --port {port}' \\
        'llama-server=llama-server -m OUT.gguf -t {threads} -np 64 -c 147456 --port {port}'

Prompts are distinct random token ids, so that no prefix is shared; answers are streamed. --prompt
lists lengths, each with its own rows; with a range such as 32-2048 each request draws a length,
uniformly on a logarithmic scale. With --clients each client sends a request as soon as it has its
answer; with --rate requests arrive as a Poisson process with so many per second. With --seconds a
row lasts a fixed time instead of a number of requests; running requests are then finished. TTFT is
the time to the first token, TPOT the time between tokens; the median and the 99th percentile of
both are printed.

Several servers get the same requests and alternate row by row. Servers given as commands are
started by the script, and stopped (SIGSTOP) while another server is measured. `times` is the ratio
of tokens per second of the first server to the other one. The first server must generate at least
as many tokens/s with any number of clients, at least 3 times as many with 16, have a 99th
percentile of TTFT that is no longer, and make no errors. Otherwise the exit status is 1.

With --turns each prompt is sent again with 32 more tokens, like the second turn of a conversation;
both TTFTs are medians. This takes one server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import httpx2
import numpy as np
from sweep.clients import Answer, Client, Lengths, closed, poisson
from sweep.rows import HEAD, Row, checks, row
from sweep.servers import Server, ServerFailed, servers

from mxc.runtime.other_load import OtherLoad

T = TypeVar("T", int, float)
#: Tokens of the question of a second turn.
QUESTION = 32
#: Least number of requests of a row.
FEWEST = 8


async def measure(arguments: argparse.Namespace, found: Sequence[Server]) -> list[Row]:
    """Put every load on every server and return the rows; print the table meanwhile."""
    rates = arguments.rate or []
    clients = arguments.clients or ([] if rates else [1, 4, 16, 64])
    loads: list[tuple[int | None, float | None]] = [(count, None) for count in clients]
    loads += [(None, rate) for rate in rates]
    rows: list[Row] = []
    if not arguments.json:
        print(HEAD)
    for server in found:
        with server.running():
            await _answers(arguments, server, Lengths(32, 32), 1, None, "warm-up", 1)
    for lengths in arguments.prompt:
        for count, rate in loads:
            first: Row | None = None
            for server in found:
                name = f"{count} clients" if rate is None else f"{rate:g}/s"
                fewest = arguments.requests or _requests(count, rate, arguments.rounds)
                with server.running():
                    started = time.perf_counter()
                    answers = await _answers(arguments, server, lengths, count, rate, name, fewest)
                    seconds = time.perf_counter() - started
                made = row(
                    answers, clients=count, rate=rate, prompt=str(lengths), server=server.name,
                    seconds=seconds,
                )  # fmt: skip
                if not arguments.json:
                    print(made.line(first), flush=True)
                first = first or made
                rows.append(made)
    return rows


def _requests(clients: int | None, rate: float | None, rounds: int) -> int:
    """Return the number of requests of a row: `rounds` for each client, or those that arrive in
    `rounds` seconds; at least FEWEST."""
    each = clients if rate is None else math.ceil(rate)
    return max(FEWEST, rounds * (each or 1))


async def _answers(
    arguments: argparse.Namespace,
    server: Server,
    lengths: Lengths,
    count: int | None,
    rate: float | None,
    name: str,
    requests: int,
) -> list[Answer]:
    """Put one load on one server and return the answers. Each server gets the same requests.

    `count`: number of clients; `rate`: requests per second; one of them is None. `name`: of the
    row, a part of the seed of its prompts.
    """
    async with _client(arguments, server) as http:
        client = await _ready(arguments, http)

        async def one(number: int) -> Answer:
            # The key has the row's name: prompts of other rows may still be in the server's cache.
            key = f"{arguments.seed} {name} {number} {lengths}"
            return await client.ask(client.tokens(key, lengths.draw(key)), number)

        until, warm = math.inf, name == "warm-up"
        if arguments.seconds is not None and not warm:
            until, requests = time.perf_counter() + arguments.seconds, sys.maxsize
        if rate is not None:
            return await poisson(rate, requests, one, until)
        return await closed(count or 1, requests, one, until)


async def turns(arguments: argparse.Namespace, server: Server) -> None:
    """Measure first and second turns of conversations, and print a row for each prompt length."""
    print("| history | conversations | first TTFT ms | second TTFT ms | times | errors |")
    print("|---|---|---|---|---|---|")
    async with _client(arguments, server) as http:
        client = await _ready(arguments, http)
        await client.ask(client.tokens("reads the weights, and is not counted", 32), 0)
        for lengths in arguments.prompt:
            answers = []
            for number in range(arguments.requests or FEWEST):
                key = f"{arguments.seed} turn {number} {lengths}"
                said = client.tokens(key, lengths.draw(key))
                first = await client.ask(said, 0)
                question = client.tokens(f"{key} question", QUESTION)
                answers.append((first, await client.ask(said + question, 0)))
            print(_turns(lengths, answers), flush=True)


def _turns(history: Lengths, answers: list[tuple[Answer, Answer]]) -> str:
    """Return a row: median TTFT of the first and of the second turns, and their ratio."""
    errors = sorted({each.error for both in answers for each in both if each.error})
    good = [both for both in answers if all(each.error is None for each in both)]
    if not good:
        return f"| {history} | 0 | - | - | - | {', '.join(errors) or '-'} |"
    first, second = (
        float(np.median([both[turn].arrivals[0] for both in good])) * 1e3 for turn in (0, 1)
    )
    return (
        f"| {history} | {len(good)} | {first:.1f} | {second:.1f} | {first / second:.1f} | "
        f"{', '.join(errors) or '-'} |"
    )


def _client(arguments: argparse.Namespace, server: Server) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {arguments.key}"}
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=None, limits=limits)


async def _ready(arguments: argparse.Namespace, http: httpx2.AsyncClient) -> Client:
    model = arguments.model or (await http.get("/v1/models")).json()["data"][0]["id"]
    return Client(http, model, arguments.generate, arguments.vocabulary)


def _list(kind: type[T]) -> Callable[[str], list[T]]:
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("servers", nargs="+", help="[NAME=]URL, or NAME=COMMAND with {port} in it")
    parser.add_argument("--threads", type=int, help="what {threads} of a command is")
    parser.add_argument("--model", help="the first of /v1/models by default")
    parser.add_argument("--key", default="none", help="API key")
    parser.add_argument("--clients", type=_list(int), help="1,4,16,64 without --rate")
    parser.add_argument("--rate", type=_list(float))
    parser.add_argument(
        "--prompt",
        type=lambda text: [Lengths.parse(part) for part in text.split(",")],
        default=[Lengths(32, 32), Lengths(512, 512), Lengths(2048, 2048)],
    )
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--requests", type=int, help="of each row; else by --rounds")
    parser.add_argument(
        "--rounds", type=int, default=4, help=f"requests of each client; {FEWEST} of a row at least"
    )
    parser.add_argument("--seconds", type=float, help="of each row, instead of --requests")
    parser.add_argument("--turns", action="store_true", help="second turns beside first ones")
    parser.add_argument("--vocabulary", type=int, default=256, help="prompts have ids below this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="rows as JSON, in place of the table")
    arguments = parser.parse_args()
    sys.exit(run(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the results, and return the exit status."""
    others, started = OtherLoad(), time.perf_counter()
    try:
        with servers(arguments.servers, arguments.threads) as found:
            if arguments.turns:
                asyncio.run(turns(arguments, found[0]))
                return 0
            rows = asyncio.run(measure(arguments, found))
            own = all(server.process is not None for server in found)
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    wanted = checks(rows)
    seconds = time.perf_counter() - started
    # Servers that the script started have ended: OtherLoad counts their time as the script's own.
    quiet = str(others) if own else None
    if arguments.json:
        said = [{"check": text, "passes": passes} for text, passes in wanted]
        report = {"rows": [each.to_dict() for each in rows], "checks": said, "others": quiet}
        print(json.dumps(report | {"seconds": seconds}))
    else:
        print()
        for text, passes in wanted:
            print(f"{'pass' if passes else 'FAIL'}  {text}")
        print(f"{seconds:.0f} s" + (f"; others used {quiet}" if quiet else ""))
    return 0 if all(passes for _, passes in wanted) else 1


if __name__ == "__main__":
    main()
