"""Throughput and waiting times of a server with OpenAI's API: of `mxc serve`, or of another one.

    mxc serve OUT.mxc --port 8000 &
    python benchmarks/serve.py http://127.0.0.1:8000 [--clients 1,4,16,64] [--prompt 32,512,2048]
    python benchmarks/serve.py http://127.0.0.1:8000 --rate 2,8

Prompts are random token ids, each of its own, so that no prefix is shared; answers are streamed.
With --clients each client asks again as soon as it has its answer; with --rate requests come at
random times, so many a second (a Poisson process). TTFT is the time to the first token, TPOT that
between tokens; of both the median and the 99th percentile. For a comparison run it against the
other server (llama-server takes the same requests) on the same machine, in turns, with the same
model and number of threads.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx2
import numpy as np


@dataclass
class Answer:
    """Times in seconds since the request; one for each event with text."""

    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None


async def ask(
    client: httpx2.AsyncClient, model: str, prompt: list[int], generate: int, seed: int
) -> Answer:
    """One streamed completion."""
    answer = Answer()
    body = {"model": model, "prompt": prompt, "max_tokens": generate, "temperature": 1.0,
            "seed": seed, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    started = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
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
    return answer


async def closed(
    clients: int, requests: int, one: Callable[[int], Awaitable[Answer]]
) -> list[Answer]:
    """So many clients, each of which asks again when it has its answer."""
    numbers = iter(range(requests))
    found: list[Answer] = []

    async def client() -> None:
        for number in numbers:
            found.append(await one(number))

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def poisson(
    rate: float, requests: int, one: Callable[[int], Awaitable[Answer]]
) -> list[Answer]:
    """Requests at random times, `rate` a second, whoever waits."""
    chance = random.Random(0)
    tasks = []
    for number in range(requests):
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(chance.expovariate(rate))
    return await asyncio.gather(*tasks)


def line(name: str, prompt: int, found: list[Answer], seconds: float) -> str:
    """A row of the table."""
    good = [each for each in found if each.error is None and each.arrivals]
    first = [each.arrivals[0] for each in good]
    between = [
        (each.arrivals[-1] - each.arrivals[0]) / (each.tokens - 1)
        for each in good
        if each.tokens > 1
    ]
    tokens = sum(each.tokens for each in good)

    def both(values: list[float]) -> str:
        if not values:
            return "-"
        return " / ".join(f"{np.percentile(values, part) * 1e3:.1f}" for part in (50, 99))

    errors = sorted({each.error for each in found if each.error})
    return (
        f"| {name} | {prompt} | {len(good)} | {tokens / seconds:.1f} | "
        f"{(tokens + prompt * len(good)) / seconds:.1f} | {both(first)} | {both(between)} | "
        f"{', '.join(errors) or '-'} |"
    )


async def measure(arguments: argparse.Namespace) -> None:
    headers = {"Authorization": f"Bearer {arguments.key}"}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=arguments.url, headers=headers, timeout=None, limits=limits
    ) as client:
        model = arguments.model or (await client.get("/v1/models")).json()["data"][0]["id"]
        print(
            "| arrivals | prompt | answers | tokens/s | with prompts | TTFT ms | TPOT ms | errors |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for prompt in arguments.prompt:

            async def one(number: int, prompt: int = prompt) -> Answer:
                chance = random.Random(f"{arguments.seed} {prompt} {number}")
                tokens = [chance.randrange(arguments.vocabulary) for _ in range(prompt)]
                return await ask(client, model, tokens, arguments.generate, number)

            await one(-1)  # reads the weights, and is not counted
            rates = [(f"{rate:g}/s", poisson, rate) for rate in arguments.rate or ()]
            loops = [(f"{count} clients", closed, count) for count in arguments.clients or ()]
            for name, arrivals, how in rates or loops:
                requests = arguments.requests or max(8, 4 * int(how))
                started = time.perf_counter()
                found = await arrivals(how, requests, one)
                print(line(name, prompt, found, time.perf_counter() - started), flush=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--model", help="the first of /v1/models by default")
    parser.add_argument("--key", default="none", help="API key")
    parser.add_argument("--clients", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--rate", type=lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--prompt", type=numbers, default=[32, 512, 2048])
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--requests", type=int, help="of each row; four a client by default")
    parser.add_argument("--vocabulary", type=int, default=256, help="prompts have ids below this")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
