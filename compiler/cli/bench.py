"""`mxc bench`: measures the rates of reading a prompt and of generating tokens."""

from __future__ import annotations

import json as json_text
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxc.compiler.cli.loading import load_model
from mxc.compiler.cli.placement import Device, Level, Threads
from mxc.compiler.cli.terminal import Wide
from mxc.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Group

    from mxc.runtime.profile import Profile, ProfileRow

#: Smallest share of a call's time for which a kernel of an operation gets a line.
_SHOWN = 0.01


def command(
    artifact: Annotated[Path, typer.Argument(help="A compiled model.", show_default=False)],
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 128,
    generate: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 32,
    threads: Threads = None,
    device: Device = None,
    level: Level = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Sequences, decoded together where there are several.")
    ] = 1,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time goes, by operation.")
    ] = False,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print one object for programs.")] = False,
) -> None:
    """Measure load, prompt and generation.

    The tokens are random, the choice is greedy. With --batch, each sequence has a prompt and
    tokens of its own, and tokens a second are those of all of them. A step of prompt tokens and
    one of a token of each are computed first and not counted: they read the weights from disk.
    "others used" are the cores of other processes, and of the host of a virtual machine.
    --profile repeats the step of the last prompt tokens, and that of the first generated one. Each
    of several devices has a table of its own.
    """
    result = measure(artifact, prompt, generate, threads, device, level, batch)
    profiles = measured_profiles(artifact, prompt, threads, device, level) if profile else ()
    if json:
        listed = {"profiles": [each.to_dict() for each in profiles]} if profile else {}
        print(json_text.dumps({**result, **listed}))
        return
    from rich.table import Table

    from mxc.compiler.cli.terminal import table_console, titled
    from mxc.runtime.other_load import described

    table = Table(show_header=False)
    table.add_row("load", f"{1e3 * result['load_seconds']:.1f} ms")
    table.add_row(f"prompt of {prompt}", f"{result['prompt_tokens_per_second']:.2f} tokens/s")
    table.add_row(f"generate {generate}", f"{result['generate_tokens_per_second']:.2f} tokens/s")
    if batch > 1:
        each_rate = result["generate_tokens_per_second_each"]
        table.add_row(f"each of {batch}", f"{each_rate:.2f} tokens/s")
    table.add_row("peak memory", f"{result['peak_memory_bytes'] / (1 << 20):,.0f} MiB")
    devices = result["devices"]
    where = f" on each of {devices} devices" if devices > 1 else ""
    table.add_row("threads", f"{result['threads']}{where}")
    table.add_row("others used", described(result["other_cores"], result["stolen_cores"]))
    if len(result["levels"]) > 1:
        table.add_row("level", f"{result['level']} of {', '.join(result['levels'])}")
    console = table_console(wide=wide)
    console.print(titled(str(artifact), table))
    for each in profiles:
        console.print(profile_table(each))


def profile_table(profile: Profile) -> Group:
    """Return a table of operations, with their kernels that take 1 % of the call or more."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from mxc.compiler.cli.terminal import Name, titled

    where = "" if profile.device is None else f"device {profile.device}: "
    rows = "row" if profile.tokens == 1 else "rows"
    title = (
        f"{where}{profile.function} of {profile.tokens} {rows} at position "
        f"{profile.position}: {profile.milliseconds:.2f} ms with the profiler, "
        f"{profile.undisturbed:.2f} ms without ({profile.threads} threads)"
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("operation")
    for head in ("calls", "ms", "%", "busy %", "GB/s", "GFLOP/s"):
        table.add_column(head, justify="right", no_wrap=True)

    def add(row: ProfileRow, indent: str = "") -> None:
        rates = (row.gigabytes_per_second, row.gflop_per_second)
        table.add_row(
            Name(indent + row.name),
            str(row.calls),
            f"{row.milliseconds:.3f}",
            f"{100 * row.share:.1f}",
            f"{100 * row.busy:.0f}",
            *("" if rate is None else f"{rate:.1f}" for rate in rates),
        )

    for operation in profile.operations:
        add(operation)
        for kernel in operation.kernels:
            if kernel.share >= _SHOWN:
                add(kernel, "  ")
    for name, rest in (
        ("between operations", profile.between_operations),
        ("around them", profile.around_operations),
    ):
        table.add_row(name, "", f"{rest:.3f}", f"{100 * rest / profile.milliseconds:.1f}")
    return titled(title, table)


def measured_profiles(
    artifact: Path, prompt: int, threads: int | None, device: str | None, level: str | None
) -> tuple[Profile, ...]:
    """Return the profiles for a prompt of random tokens; see runtime/profile.py."""
    from mxc.runtime.profile import profile_model
    from mxc.runtime.session import load

    model = load(artifact, device=device, threads=threads, level=level)
    record = model.manifest.model
    assert record is not None  # checked by `measure`
    return profile_model(model, _random_tokens(prompt, record.vocab_size))


def _random_tokens(count: int, vocabulary: int) -> list[int]:
    import numpy as np

    tokens: list[int] = np.random.default_rng(0).integers(0, vocabulary, count).tolist()
    return tokens


def measure(
    artifact: Path,
    prompt: int,
    generate: int,
    threads: int | None,
    device: str | None,
    level: str | None = None,
    batch: int = 1,
) -> dict[str, Any]:
    """Return the object that --json prints; rates in tokens per second of wall time, sizes in
    bytes.

    Rates count the tokens of all `batch` sequences, except the rate of each sequence.
    """
    import numpy as np

    from mxc.runtime.machine import peak_memory_bytes
    from mxc.runtime.other_load import OtherLoad

    started = time.perf_counter()
    model = load_model(artifact, device=device, threads=threads, level=level)
    load_seconds = time.perf_counter() - started
    sequence = model.sequence()
    together = model.batch()
    record = model.manifest.model
    assert record is not None  # model.sequence() raises for a model without it
    if prompt + generate > record.max_sequence_length:
        raise RequestError(
            f"--prompt {prompt} and --generate {generate} are longer than the "
            f"{record.max_sequence_length} tokens that the artifact holds; ask for less, or "
            "compile with a larger --max-sequence-length"
        )
    tokens = _random_tokens(batch * prompt, record.vocab_size)
    sequence.feed(tokens[: min(prompt, record.rows)], last_only=True)
    sequence.reset()
    sequences = [sequence, *(model.sequence() for _ in range(batch - 1))]
    together.feed(sequences, tokens[:batch])
    for each in sequences:
        each.reset()

    others, started = OtherLoad(), time.perf_counter()
    logits = np.concatenate(
        [
            each.feed(tokens[number * prompt : (number + 1) * prompt], last_only=True)
            for number, each in enumerate(sequences)
        ]
    )
    prompt_seconds = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(generate):
        logits = together.feed(sequences, np.argmax(logits, axis=1).tolist())
    generate_seconds = time.perf_counter() - started
    return {
        "prompt_tokens_per_second": batch * prompt / prompt_seconds,
        "generate_tokens_per_second": batch * generate / generate_seconds,
        "generate_tokens_per_second_each": generate / generate_seconds,
        "load_seconds": load_seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "other_cores": others.cores(),
        "stolen_cores": others.stolen(),
        "threads": model.threads,
        "devices": len(model.devices),
        "prompt": prompt,
        "generate": generate,
        "batch": batch,
        "target": model.manifest.target.name,
        "level": model.level,
        "levels": list(model.manifest.every_level),
    }
