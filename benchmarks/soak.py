"""Put random load, valid and invalid, on a running `mxc serve`, and check its state afterwards.

    mxc serve OUT.mxc --port 8000 &
    python benchmarks/soak.py http://127.0.0.1:8000 [--minutes 30] [--seed 0] [--clients 16]

Clients send requests; some disconnect midway, reset their connection, read slowly, or send half a
body, a body that is too large, or no JSON. Every valid request must have its answer (or status
429), the same as when its prompt runs alone. At the end no request may run or wait, every page must
be free, no more files may be open than before the load, and the server's memory may have grown by
at most 32 MiB since a fifth of the time. Otherwise the exit status is 1.
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
#: Bytes of a body that is too large: more than the server's default limit of 8 MiB.
TOO_LARGE = 9 << 20
#: How much a server's memory may grow once it is warm, in bytes.
GROWTH = 32 << 20
#: Prompts as token ids. The longest fill whole pages, which then stay in the prefix cache.
PROMPTS = [(token,) * count for token in (65, 66, 67) for count in (1, 7, 30, 130)]


@dataclass
class Soak:
    """Load on one server; `problems` says what was not as it should be."""

    url: str
    seed: int = 0
    tokens: int = 24
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    #: Resident bytes of the server: after a fifth of the time, and at the end.
    memory: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        with urlopen(f"{self.url}/v1/models", timeout=60) as answer:
            self.model = json.load(answer)["data"][0]["id"]
        self.expected: dict[tuple[int, ...], str] = {}

    async def run(self, seconds: float, clients: int, turns: int = sys.maxsize) -> None:
        """Record the answer to each prompt alone, then run all clients at once, and check.

        The clients end after `seconds`, or after `turns` requests of each.
        """
        for prompt in PROMPTS:
            status, body = await self.post(self.body(prompt))
            assert status == 200, body
            self.expected[prompt] = json.loads(body)["choices"][0]["text"]
        now = time.monotonic()
        until = now + seconds
        files = self.metrics()["process_open_fds"]
        watch = asyncio.ensure_future(self.watch(now + seconds / 5))
        await asyncio.gather(*(self.client(number, until, turns) for number in range(clients)))
        watch.cancel()
        await self.settle(files)
        self.memory.append(self.metrics()["process_resident_memory_bytes"])
        if len(self.memory) == 2 and self.memory[1] > self.memory[0] + GROWTH:
            self.problems.append(f"memory grew from {self.memory[0]:.0f} to {self.memory[1]:.0f}")

    async def watch(self, when: float) -> None:
        """Record the server's memory at the time `when`, once it is warm."""
        await asyncio.sleep(when - time.monotonic())
        self.memory.append(self.metrics()["process_resident_memory_bytes"])

    def metrics(self) -> dict[str, float]:
        """Return the current values of /metrics by name and labels."""
        with urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in values.items()}

    async def client(self, number: int, until: float, turns: int) -> None:
        """Run one client: requests of random kinds, one after the other."""
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

    def body(self, prompt: tuple[int, ...], **more: object) -> bytes:
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
        """Send a request. Return status and body of the answer, or (0, b"") if none comes."""
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
            self.problems.append(
                f"ask: another answer to {len(prompt)} times {prompt[0]}: {body[:300]!r}"
            )

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

    async def settle(self, files: float) -> None:
        """Wait until no request runs or waits, no page is used and no more than `files` are open.

        After ten seconds, add what is left to the problems.
        """
        left: dict[str, float] = {}
        for _ in range(200):
            values = self.metrics()
            left = {
                name: value
                for name, value in values.items()
                if value and (name.startswith("mxc_requests_") or 'use="used"' in name)
            }
            if values["process_open_fds"] > files:
                left["process_open_fds"] = values["process_open_fds"]
            if not left:
                return
            await asyncio.sleep(0.05)
        self.problems.append(f"left over: {left}, open files at first: {files}")


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
    print("memory, MiB:", " and ".join(f"{each / (1 << 20):.0f}" for each in soak.memory))
    for problem in soak.problems:
        print(problem)
    sys.exit(bool(soak.problems))


if __name__ == "__main__":
    main()
