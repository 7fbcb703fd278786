"""Random load on a running `mxc serve`, good and bad, and what is left when it is over.

    mxc serve OUT.mxc --port 8000 &
    python benchmarks/soak.py http://127.0.0.1:8000 [--minutes 30] [--seed 0] [--clients 16]

Clients ask, and some of them leave in the middle, reset their connection, read slowly, send half a
body, too much of one, or none of JSON. At the end no request runs or waits, every page is free,
every proper request had its answer, and each answer is the one that its prompt got alone.
"""

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import urlopen

PATH = "/v1/completions"
#: More than a server takes by default.
TOO_LARGE = 9 << 20
PROMPTS = [f"{word} " * count for word in ("one", "and", "the") for count in (1, 7, 30)]


@dataclass
class Soak:
    """Load on one server; `problems` says what was not as it should be."""

    url: str
    seed: int = 0
    tokens: int = 24
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        with urlopen(f"{self.url}/v1/models", timeout=60) as answer:
            self.model = json.load(answer)["data"][0]["id"]
        self.expected: dict[str, str] = {}

    async def run(self, seconds: float, clients: int, turns: int = sys.maxsize) -> None:
        """Ask each prompt alone, then all at once: for so long, or so many turns of a client."""
        for prompt in PROMPTS:
            status, body = await self.post(self.body(prompt))
            assert status == 200, body
            self.expected[prompt] = json.loads(body)["choices"][0]["text"]
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(number, until, turns) for number in range(clients)))
        await self.settle()

    async def client(self, number: int, until: float, turns: int) -> None:
        """One client that does one thing after the other."""
        chance = random.Random(f"{self.seed} {number}")
        ways = [self.ask, self.ask, self.leave, self.reset, self.slow, self.no_json, self.half]
        while time.monotonic() < until and turns > 0:
            turns -= 1
            way = self.large if chance.random() < 0.02 else chance.choice(ways)
            self.seen[way.__name__] += 1
            try:
                await asyncio.wait_for(way(chance), 300)
            except Exception as error:
                self.problems.append(f"{way.__name__}: {type(error).__name__} {error}")

    def body(self, prompt: str, **more: object) -> bytes:
        fields = {"model": self.model, "prompt": prompt, "max_tokens": self.tokens, "seed": 1}
        return json.dumps({**fields, "temperature": 1.0, **more}).encode()

    async def open(self, body: bytes, length: int | None = None) -> tuple[
        asyncio.StreamReader, asyncio.StreamWriter
    ]:  # fmt: skip
        reader, writer = await asyncio.open_connection(self.host, self.port)
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return reader, writer

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        reader, writer = await self.open(body)
        try:
            found = await reader.read()
        finally:
            writer.close()
        head, _, rest = found.partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, rest

    async def ask(self, chance: random.Random) -> None:
        prompt = chance.choice(PROMPTS)
        status, body = await self.post(self.body(prompt))
        if status == 429:
            self.seen["turned away"] += 1
        elif status != 200:
            self.problems.append(f"ask: {status} {body[:200]!r}")
        elif json.loads(body)["choices"][0]["text"] != self.expected[prompt]:
            self.problems.append(f"ask: another answer to {prompt[:20]!r}: {body[:300]!r}")

    async def leave(self, chance: random.Random) -> None:
        reader, writer = await self.open(self.body(chance.choice(PROMPTS), stream=True))
        await reader.read(chance.choice([1, 200, 600]))
        writer.close()

    async def reset(self, chance: random.Random) -> None:
        _, writer = await self.open(self.body(chance.choice(PROMPTS)))
        await writer.drain()
        await asyncio.sleep(chance.random() / 20)
        handle = writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def slow(self, chance: random.Random) -> None:
        prompt = chance.choice(PROMPTS)
        reader, writer = await self.open(self.body(prompt, stream=True))
        found = b""
        while piece := await reader.read(300):
            found += piece
            await asyncio.sleep(chance.random() / 50)
        writer.close()
        if b"data: [DONE]" not in found and b" 429 " not in found[:20]:
            self.problems.append(f"slow: {found[-200:]!r}")

    async def no_json(self, chance: random.Random) -> None:
        bad = [b"{", b"[]", b"\xff", b'{"model": 1}', b'{"a": ' * 50, b"", b"null"]
        status, body = await self.post(chance.choice(bad))
        if status != 400 or b"error" not in body:
            self.problems.append(f"no_json: {status} {body[:200]!r}")

    async def half(self, chance: random.Random) -> None:
        body = self.body(chance.choice(PROMPTS))
        _, writer = await self.open(body[: len(body) // 2], len(body))
        await writer.drain()
        await asyncio.sleep(chance.random() / 20)
        writer.close()

    async def large(self, chance: random.Random) -> None:
        reader, writer = await self.open(b"{", TOO_LARGE)
        head = await reader.readline()
        writer.close()
        if b" 413 " not in head:
            self.problems.append(f"large: {head!r}")

    async def settle(self) -> None:
        """Wait until nothing runs; note what stays."""
        left: dict[str, float] = {}
        for _ in range(200):
            with urlopen(f"{self.url}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
            values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            left = {
                name: float(value)
                for name, value in values.items()
                if float(value) and (name.startswith("mxc_requests_") or 'use="used"' in name)
            }
            if not left:
                return
            await asyncio.sleep(0.05)
        self.problems.append(f"left over: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    soak = Soak(arguments.url, arguments.seed)
    asyncio.run(soak.run(60 * arguments.minutes, arguments.clients))
    print(dict(soak.seen))
    for problem in soak.problems:
        print(problem)
    sys.exit(bool(soak.problems))


if __name__ == "__main__":
    main()
