"""Throughput and waiting times of a server with OpenAI's API: of `mxc serve`, or of another one.

    mxc serve OUT.mxc --port 8000 &
    python benchmarks/serve.py http://127.0.0.1:8000 [--clients 1,4,16,64] [--prompt 32,512,2048]
    python benchmarks/serve.py http://127.0.0.1:8000 --rate 2,8
    python benchmarks/serve.py http://127.0.0.1:8000 --turns --prompt 2000

Prompts are random token ids, each of its own, so that no prefix is shared; answers are streamed.
With --clients each client asks again as soon as it has its answer; with --rate requests come at
random times, so many a second (a Poisson process). With --seconds a row takes so long instead of so
many requests; what is on its way then is finished. TTFT is the time to the first token, TPOT that
between tokens; of both the median and the 99th percentile.

With --turns each prompt is sent again with 32 more tokens behind it, as the second turn of a
conversation is; both TTFTs are medians.

For a comparison run it against the other server (llama-server takes the same requests) on the same
machine, in turns, with the same model and number of threads.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx2
import numpy as np

#: Tokens of the question of a second turn.
QUESTION = 32


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


def tokens(key: str, count: int, vocabulary: int) -> list[int]:
    """Random token ids, the same for each key."""
    chance = random.Random(key)
    return [chance.randrange(vocabulary) for _ in range(count)]


async def closed(
    clients: int, requests: int, one: Callable[[int], Awaitable[Answer]], until: float
) -> list[Answer]:
    """So many clients, each of which asks again when it has its answer."""
    numbers = iter(range(requests))
    found: list[Answer] = []

    async def client() -> None:
        for number in numbers:
            found.append(await one(number))
            if time.perf_counter() > until:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def poisson(
    rate: float, requests: int, one: Callable[[int], Awaitable[Answer]], until: float
) -> list[Answer]:
    """Requests at random times, `rate` a second, whoever waits."""
    chance = random.Random(0)
    tasks = []
    for number in range(requests):
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(chance.expovariate(rate))
        if time.perf_counter() > until:
            break
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


def turns(prompt: int, answers: list[tuple[Answer, Answer]]) -> str:
    """A row: when first and second turns began to answer, and how many times sooner."""
    errors = sorted({each.error for both in answers for each in both if each.error})
    good = [both for both in answers if all(each.arrivals for each in both)]
    if not good:
        return f"| {prompt} | 0 | - | - | - | {', '.join(errors) or '-'} |"
    first, second = (
        float(np.median([both[turn].arrivals[0] for both in good])) * 1e3 for turn in (0, 1)
    )
    return (
        f"| {prompt} | {len(good)} | {first:.1f} | {second:.1f} | {first / second:.1f} | "
        f"{', '.join(errors) or '-'} |"
    )


async def measure(arguments: argparse.Namespace) -> None:
    headers = {"Authorization": f"Bearer {arguments.key}"}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=arguments.url, headers=headers, timeout=None, limits=limits
    ) as client:
        model = arguments.model or (await client.get("/v1/models")).json()["data"][0]["id"]

        async def one(key: str, prompt: int, seed: int = 0, question: int = 0) -> Answer:
            key = f"{arguments.seed} {key} {prompt}"
            said = tokens(key, prompt, arguments.vocabulary)
            said += tokens(key + " question", question, arguments.vocabulary)
            return await ask(client, model, said, arguments.generate, seed)

        await one("reads the weights, and is not counted", 32)
        if arguments.turns:
            print("| history | conversations | first TTFT ms | second TTFT ms | times | errors |")
            print("|---|---|---|---|---|---|")
            for prompt in arguments.prompt:
                answers = []
                for number in range(arguments.requests or 8):
                    first = await one(f"turn {number}", prompt)
                    second = await one(f"turn {number}", prompt, question=QUESTION)
                    answers.append((first, second))
                print(turns(prompt, answers), flush=True)
            return
        print(
            "| arrivals | prompt | answers | tokens/s | with prompts | TTFT ms | TPOT ms | errors |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for prompt in arguments.prompt:
            rates = [(f"{rate:g}/s", poisson, rate) for rate in arguments.rate or ()]
            loops = [(f"{count} clients", closed, count) for count in arguments.clients or ()]
            for name, arrivals, how in rates or loops:
                requests = arguments.requests or max(8, 4 * int(how))
                if arguments.seconds is not None:
                    requests = sys.maxsize

                async def each(number: int, prompt: int = prompt, name: str = name) -> Answer:
                    # Prompts of other rows may still be in the server's cache.
                    return await one(f"{name} {number}", prompt, number)

                started = time.perf_counter()
                until = started + (arguments.seconds or math.inf)
                found = await arrivals(how, requests, each, until)
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
    parser.add_argument("--seconds", type=float, help="of each row, instead of --requests")
    parser.add_argument("--turns", action="store_true", help="second turns beside first ones")
    parser.add_argument("--vocabulary", type=int, default=256, help="prompts have ids below this")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
