"""`mxc bench`: how fast an artifact reads a prompt and writes tokens on this machine."""

from __future__ import annotations

import json as json_text
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mxc.dialects.errors import RequestError


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled model.", show_default=False)],
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 128,
    generate: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 32,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="all physical cores")
    ] = None,
    device: Annotated[str | None, typer.Option(help="IREE device URI, e.g. hip://1.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one object for programs.")] = False,
) -> None:
    """Measure load, prompt and generation.

    The tokens are random, the choice is greedy. One chunk of the prompt and one token are
    computed first and not counted: they read the weights from disk.
    """
    result = measure(artifact, prompt, generate, threads, device)
    if json:
        print(json_text.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(artifact), title_justify="left", show_header=False)
    table.add_row("load", f"{1e3 * result['load_seconds']:.1f} ms")
    table.add_row(f"prompt of {prompt}", f"{result['prompt_tokens_per_second']:.2f} tokens/s")
    table.add_row(f"generate {generate}", f"{result['generate_tokens_per_second']:.2f} tokens/s")
    table.add_row("peak memory", f"{result['peak_memory_bytes'] / (1 << 20):,.0f} MiB")
    table.add_row("threads", str(result["threads"]))
    Console().print(table)


def measure(
    artifact: Path, prompt: int, generate: int, threads: int | None, device: str | None
) -> dict[str, Any]:
    """The object that --json prints; rates in tokens a second of wall time, memory in bytes."""
    import numpy as np

    from mxc.runtime.machine import peak_memory_bytes
    from mxc.runtime.session import load

    started = time.perf_counter()
    model = load(artifact, device=device, threads=threads)
    load_seconds = time.perf_counter() - started
    sequence = model.sequence()
    record = model.manifest.model
    assert record is not None  # model.sequence() refuses a model without it
    if prompt + generate > record.max_sequence_length:
        raise RequestError(
            f"--prompt {prompt} and --generate {generate} are longer than the "
            f"{record.max_sequence_length} tokens that the artifact holds; ask for less, or "
            "compile with a larger --max-sequence-length"
        )
    tokens = np.random.default_rng(0).integers(0, record.vocab_size, prompt).tolist()
    sequence.feed(tokens[: record.prefill_chunk], last_only=True)
    sequence.reset()
    sequence.feed(tokens[:1])
    sequence.reset()

    started = time.perf_counter()
    logits = sequence.feed(tokens, last_only=True)
    prompt_seconds = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(generate):
        logits = sequence.feed([int(np.argmax(logits))])
    generate_seconds = time.perf_counter() - started
    return {
        "prompt_tokens_per_second": prompt / prompt_seconds,
        "generate_tokens_per_second": generate / generate_seconds,
        "load_seconds": load_seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "threads": model.threads,
        "prompt": prompt,
        "generate": generate,
        "target": model.manifest.target.name,
    }
