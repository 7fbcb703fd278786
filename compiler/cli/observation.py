"""Options that observe an artifact on the simulator, and their output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from mxc.compiler.cli.loading import load_model
from mxc.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from mxc.runtime.session import Model
    from mxc.simulator.code.code_object import CodeObjectKernel
    from mxc.simulator.watch.count import Counter
    from mxc.simulator.watch.observe import Observer
    from mxc.simulator.watch.sanitizer import Sanitizer
    from mxc.simulator.watch.trace import Trace

TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="On the simulator: write each instruction of one wave, with what it wrote.",
        show_default=False,
    ),
]
Wave = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="The wave of each dispatch that --trace writes, counted over its workgroups.",
        show_default="0",
    ),
]
Count = Annotated[
    bool,
    typer.Option(
        "--count", help="On the simulator: instructions, bytes, bank conflicts, least cycles."
    ),
]
Sanitize = Annotated[
    bool,
    typer.Option(
        "--sanitize",
        help="On the simulator: look for races, missing waits, undefined values; "
        "status 1 where there are any.",
    ),
]

#: Columns of the memory table: heading and field of Counts.
_MEMORY = (
    ("read", "memory_read"),
    ("written", "memory_written"),
    ("LDS\nread", "lds_read"),
    ("LDS\nwritten", "lds_written"),
    ("bank\nconflicts", "bank_conflicts"),
    ("matrix\ncycles", "matrix_cycles"),
    ("vector\ncycles", "vector_cycles"),
    ("LDS\ncycles", "lds_cycles"),
)


class Observation:
    """Observers of the dispatches of one command, and their results."""

    def __init__(
        self, *, trace: Path | None, wave: int | None, count: bool, sanitize: bool
    ) -> None:
        """Store the options. Raises RequestError for --wave without --trace."""
        if wave is not None and trace is None:
            raise RequestError("--wave is for --trace FILE, which is not given")
        self._trace, self._wave = trace, wave or 0
        self._count, self._sanitize = count, sanitize
        self._file: TextIO | None = None
        self._traces: list[Trace] = []
        self._counters: dict[str, Counter] = {}
        self._runs: dict[str, int] = {}
        self._sanitizer: Sanitizer | None = None

    @property
    def wanted(self) -> bool:
        """Whether any observation was requested."""
        return self._trace is not None or self._count or self._sanitize

    def load(
        self, artifact: Path, *, device: str | None, threads: int | None, level: str | None
    ) -> Model:
        """Load the artifact and observe its dispatches.

        Raises as `mxc.load`, and RequestError if an observation is requested without the simulator,
        or if the trace file cannot be written.
        """
        if not self.wanted:
            return load_model(artifact, device=device, threads=threads, level=level)
        if device != "simulator":
            raise RequestError(
                "--trace, --count and --sanitize watch the simulator; "
                f"they need --device simulator, got {device or 'no --device'}"
            )
        from mxc.runtime.simulated import load as simulated

        model = simulated(artifact, observe=self._observe)
        if self._trace is not None:
            try:
                self._file = self._trace.open("w")
            except OSError as error:
                raise RequestError(
                    f"--trace {self._trace}: cannot be written ({error.strerror})"
                ) from error
        return model

    def _observe(self, kernel: CodeObjectKernel) -> Observer:
        """Return the observer of the next dispatch."""
        from mxc.simulator.watch.count import Counter
        from mxc.simulator.watch.observe import ObserverGroup
        from mxc.simulator.watch.sanitizer import Sanitizer
        from mxc.simulator.watch.trace import Trace

        chosen: list[Observer] = []
        if self._file is not None:
            # Of finished traces only the number of waves is needed: keep the one with the most.
            self._traces = [*_longest(self._traces), Trace(self._file, self._wave)]
            chosen.append(self._traces[-1])
        if self._count:
            chosen.append(self._counters.setdefault(kernel.name, Counter()))
            self._runs[kernel.name] = self._runs.get(kernel.name, 0) + 1
        if self._sanitize:
            self._sanitizer = self._sanitizer or Sanitizer()
            chosen.append(self._sanitizer)
        return chosen[0] if len(chosen) == 1 else ObserverGroup(chosen)

    def close(self) -> None:
        """Close the trace. Raises RequestError if no dispatch had the requested wave."""
        if self._file is None:
            return
        self._file.close()
        waves = max((trace.waves for trace in self._traces), default=0)
        if waves <= self._wave:
            raise RequestError(
                f"--wave {self._wave}: no dispatch has it, the largest has {waves} waves, "
                "counted from 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the requested results, for --json."""
        found: dict[str, Any] = {}
        if self._trace is not None:
            found["trace"] = str(self._trace)
        if self._count:
            found["counts"] = [
                {"kernel": name, "runs": self._runs[name], **counter.counts.to_dict()}
                for name, counter in self._counters.items()
            ]
        if self._sanitize:
            found["findings"] = [
                {**vars(finding), "times": times} for finding, times in self._findings()
            ]
        return found

    def show(self, *, wide: bool) -> None:
        """Print tables of counts and findings."""
        from mxc.compiler.cli.terminal import table_console

        console = table_console(wide=wide)
        if self._count:
            console.print(self._instructions(console))
            console.print(self._memory(console))
        if self._sanitize and not self._findings():
            print("the sanitizer found nothing")
        elif self._sanitize:
            console.print(self._found())

    def refuse_findings(self) -> None:
        """Raise RequestError if the sanitizer found something."""
        found = self._findings()
        if found:
            raise RequestError(f"the sanitizer reports {len(found)} places in these kernels")

    def _findings(self) -> list[tuple[Any, int]]:
        if self._sanitizer is None:
            return []
        counts = self._sanitizer.counts
        return [(each, counts[each.kind, each.place]) for each in self._sanitizer.findings]

    def _instructions(self, console: Console) -> Group:
        classes = sorted({c for k in self._counters.values() for c in k.counts.instructions})
        rows = []
        for name, counter in self._counters.items():
            counts = counter.counts
            numbers = [counts.instructions.get(each, 0) for each in classes]
            rows.append((name, [self._runs[name], counts.waves, *numbers]))
        heads = ["runs", "waves", *(each.replace(" ", "\n") for each in classes)]
        return counted(console, "instructions, of all waves", heads, rows)

    def _memory(self, console: Console) -> Group:
        every = {name: each.counts.to_dict() for name, each in self._counters.items()}
        rows = [(name, [of[field] for _, field in _MEMORY]) for name, of in every.items()]
        heads = [head for head, _ in _MEMORY]
        return counted(console, "bytes, and the least cycles", heads, rows)

    def _found(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(title="the sanitizer found", title_justify="left", box=SIMPLE_HEAD)
        for head in ("kind", "place", "what"):
            table.add_column(head)
        table.add_column("times", justify="right")
        for finding, times in self._findings():
            table.add_row(finding.kind, finding.place, finding.detail, f"{times:,}")
        return table


def _longest(traces: Sequence[Trace]) -> list[Trace]:
    return [max(traces, key=lambda trace: trace.waves)] if traces else []


def counted(
    console: Console, title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]
) -> Group:
    """Return a table of the numbers of kernels; lines if it has more columns than there is room."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    from mxc.compiler.cli.terminal import Name, Prose, has_room, titled

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kernel")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, numbers in rows:
        table.add_row(Name(name), *(f"{number:,}" for number in numbers))
    if has_room(console, table):
        return titled(title, table)
    words = [head.replace("\n", " ") for head in heads]
    lines = []
    for name, numbers in rows:
        pairs = zip(words, numbers, strict=True)
        said = ", ".join(f"{word} {number:,}" for word, number in pairs if number)
        lines.append(Prose(f"{name}: {said}"))
    return titled(title, Group(*lines))
