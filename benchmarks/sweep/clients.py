"""Sends requests with random prompts, from clients that repeat at once or at random times."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx2

#: Sends the request with a number, and returns its answer.
One = Callable[[int], Awaitable["Answer"]]


@dataclass
class Answer:
    """The answer to one request.

    `prompt`: number of prompt tokens. `arrivals`: seconds from the request to each event with text.
    `tokens`: number of generated tokens, according to the server. `error`: None if there is none.
    """

    prompt: int
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Lengths:
    """Range of lengths of prompts in tokens, drawn uniformly on a logarithmic scale."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Parse "512" or "32-2048". Raises ValueError."""
        numbers = [int(part) for part in text.split("-")]
        if len(numbers) > 2 or numbers[0] < 1 or numbers[-1] < numbers[0]:
            raise ValueError(f"{text}: wanted a number of tokens, or two with - between")
        return cls(numbers[0], numbers[-1])

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"

    def draw(self, key: str) -> int:
        """Draw a length; the same key gives the same length."""
        chance = random.Random(f"length {key}")
        return round(math.exp(chance.uniform(math.log(self.least), math.log(self.most))))


@dataclass(frozen=True)
class Client:
    """Sends requests to one server.

    `generate`: number of tokens of each answer. `vocabulary`: prompts have token ids below it.
    """

    http: httpx2.AsyncClient
    model: str
    generate: int
    vocabulary: int

    def tokens(self, key: str, count: int) -> list[int]:
        """Draw `count` random token ids; the same key gives the same ids."""
        chance = random.Random(key)
        return [chance.randrange(self.vocabulary) for _ in range(count)]

    async def ask(self, prompt: list[int], seed: int) -> Answer:
        """Request a streamed completion of `generate` tokens, without stopping at an
        end-of-sequence token."""
        answer = Answer(len(prompt))
        body = {"model": self.model, "prompt": prompt, "max_tokens": self.generate,
                "temperature": 1.0, "seed": seed, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
        started = time.perf_counter()
        try:
            async with self.http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    answer.error = str(response.status_code)
                    return answer
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        answer.error = event["error"]["message"]
                    elif any(choice["text"] for choice in event["choices"]):
                        answer.arrivals.append(time.perf_counter() - started)
                    if event.get("usage"):
                        answer.tokens = event["usage"]["completion_tokens"]
        except httpx2.HTTPError as error:
            answer.error = type(error).__name__
        if answer.error is None and not answer.arrivals:
            answer.error = "no text"
        return answer


async def closed(clients: float, requests: int, one: One, until: float) -> list[Answer]:
    """Run `clients` clients, each of which sends a request as soon as it has its last answer.

    They stop after `requests` in all, or when an answer arrives after the time `until`.
    """
    numbers = iter(range(requests))
    found: list[Answer] = []

    async def client() -> None:
        for number in numbers:
            found.append(await one(number))
            if time.perf_counter() > until:
                return

    await asyncio.gather(*(client() for _ in range(int(clients))))
    return found


async def poisson(rate: float, requests: int, one: One, until: float) -> list[Answer]:
    """Send requests at random times, `rate` per second, without waiting for earlier answers.

    Stops after `requests` or at the time `until`, and returns when all answers are there.
    """
    chance = random.Random(0)
    tasks = []
    for number in range(requests):
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(chance.expovariate(rate))
        if time.perf_counter() > until:
            break
    return await asyncio.gather(*tasks)
