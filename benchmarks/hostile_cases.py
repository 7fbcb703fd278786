"""Hostile inputs for the command mxc: each must be refused in one line, fast, leaving no files.

`cases` makes command lines with the files that they need, from a seed. `Runner` runs them in a
separate process and reports how the command mishandles them.
`python benchmarks/fuzz_headers.py --commands N` runs N of them, tests/test_hostile.py some.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import random
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostile_texts as texts
import numpy as np

from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut
from mxc.artifact.manifest import CHAT_TEMPLATE, MANIFEST, MODULE, REPORT, TOKENIZER, WEIGHTS
from mxc.compiler.report import FunctionCost, Matmul, Report, ReportOperation
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.hot_loop import HotLoop
from mxc.targets.compute_unit import Occupancy

#: Time limit of a command in seconds; only a command that hangs takes longer.
SECONDS = 60.0

#: Values that are put into JSON texts: of every type, and at the limits of numbers.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 63, 1 << 200, 1.5, float("nan"), float("inf"), "",
    "x", "\0", "../x", "x" * 5000, "\ud800", [], [None], [[]], {}, {"x": 1}, [1, "2", None], "cpu",
)  # fmt: skip


@dataclass
class Case:
    """A command line, in which `{artifact}` and names of `files` in braces stand for their paths.

    `base`: name of the artifact, in which `changes` (name -> contents) replaces files. `files`:
    further files for the command. `needs_error`: whether the command must be refused; otherwise it
    may also succeed, as it does with the undamaged artifact.
    """

    name: str
    words: list[str]
    base: str = ""
    changes: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    needs_error: bool = False

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.partition(" ")[0].rstrip(":")


def mutations(raw: Any, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield texts made from the JSON value `raw`, without end: what is wrong, and the text."""
    known = list(_places(raw))
    while True:
        path, whole = rng.choice(known), copy.deepcopy(raw)
        place = ".".join(map(str, path))[:60]
        holder = whole
        for key in path[:-1]:
            holder = holder[key]
        kind = rng.randrange(10)
        if kind < 6:
            holder[path[-1]] = rng.choice(VALUES)
            yield f"{place} is {holder[path[-1]]!r:.30}", json.dumps(whole).encode()
        elif kind == 6:
            del holder[path[-1]]
            yield f"{place} is missing", json.dumps(whole).encode()
        elif kind == 7:
            if isinstance(holder, dict):
                holder[rng.choice(["", "unknown", "__class__", "\0"])] = 1
            else:
                holder.append(rng.choice(VALUES))
            yield f"more beside {place}", json.dumps(whole).encode()
        else:
            data = bytearray(json.dumps(raw).encode())
            at = rng.randrange(len(data))
            if kind == 8:
                data[at] = rng.randrange(256)
            yield f"byte {at}", bytes(data if kind == 8 else data[:at])


def _places(raw: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


def report() -> Report:
    """Return a report with a record of every kind."""
    loop = HotLoop(is_loop=True, instructions=3, census={"vector": 3}, shares={"matrix": 0.5})
    held = Occupancy(waves_per_simd=4, workgroups=2, limited_by="LDS")
    kernel = KernelCode(
        name="k", instructions={"fma": 2}, vgpr=8, sgpr=8, agpr=0, occupancy=held, hot_loop=loop
    )
    matmul = Matmul(
        name="q", function="main", batch=1, m=1, n=4, k=4, lhs="f32", rhs="f32", out="f32",
        kernel="k", lowering="fma", kernels=1, bytes_moved=None, bytes_minimum=64, fallback=None,
    )  # fmt: skip
    cost = FunctionCost(name="main", dispatches=1, transient_bytes=0, dynamic_transients=0)
    operation = ReportOperation(function="main", name="q", kernel="k", bytes_moved=None, flops=8)
    return Report(
        target="cpu", matmuls=(matmul,), kernels=(kernel,), functions=(cost,),
        findings=("said",), operations=(operation,),
    )  # fmt: skip


RUN = ["run", "{artifact}", "--input", "{a.npy}", "--input", "{a.npy}"]
GENERATE = ["generate", "{artifact}", "--prompt-tokens", "1,2,3", "--max-new-tokens", "3"]
CHAT = ["generate", "{artifact}", "--prompt", "w1 w2", "--max-new-tokens", "2"]
#: Name of an artifact -> commands that read its manifest.
COMMANDS = {
    "plain": (RUN, ["report", "{artifact}"], ["inspect", "{artifact}", "--json"]),
    "toy": (GENERATE, CHAT, ["inspect", "{artifact}"]),
}


def cases(bases: dict[str, Path], seed: int) -> Iterator[Case]:
    """Yield random cases of every kind, without end. `bases`: paths of the artifacts by name."""
    rng = random.Random(seed)
    files = (reports, archives, modules, tokenizers, templates)
    kinds = [make(bases, rng) for make in files]
    kinds += [manifests(bases, rng, base) for base in COMMANDS]
    kinds += [make(rng) for make in (arrays, options, compilations)]
    while True:
        yield next(rng.choice(kinds))


def manifests(bases: dict[str, Path], rng: random.Random, base: str) -> Iterator[Case]:
    """Yield cases with a damaged manifest."""
    for what, data in mutations(json.loads((bases[base] / MANIFEST).read_text()), rng):
        words = rng.choice(COMMANDS[base])
        yield Case(f"manifest of {base}: {what}", words, base, {MANIFEST: data}, ARRAY)


def reports(bases: dict[str, Path], rng: random.Random) -> Iterator[Case]:
    """Yield cases with a damaged report, of one program or of several levels."""
    one = report().to_dict()
    levels = {"levels": {"a": one}, "archives": [{"name": "w", "bytes": 3, "levels": ["a"]}]}
    found = [mutations(json.loads(json.dumps(each)), rng) for each in (one, levels)]
    while True:
        what, data = next(rng.choice(found))
        yield Case(f"report: {what}", ["report", "{artifact}"], "plain", {REPORT: data})


def altered(base: Path, changes: dict[str, bytes]) -> dict[str, bytes]:
    """Return `changes` and a manifest with their sizes and checksums, which pass the checks."""
    manifest = json.loads((base / MANIFEST).read_text())
    for name, data in changes.items():
        digest = hashlib.sha256(data).hexdigest()
        manifest["files"][name] = {"bytes": len(data), "sha256": digest}
    return {**changes, MANIFEST: json.dumps(manifest).encode()}


def archives(bases: dict[str, Path], rng: random.Random) -> Iterator[Case]:
    """Yield cases with a parameter archive of which a byte of the header is changed, or that is
    also cut there."""
    whole = (bases["plain"] / WEIGHTS).read_bytes()
    words = ["run", "{artifact}", "--function", "weighted", "--input", "{a.npy}"]
    while True:
        at = rng.randrange(384)
        data = bytearray(whole)
        data[at] = rng.randrange(256)
        if rng.random() < 0.1:
            del data[at:]
        changes = altered(bases["plain"], {WEIGHTS: bytes(data)})
        yield Case(f"archive: byte {at}", words, "plain", changes, ARRAY)


def modules(bases: dict[str, Path], rng: random.Random) -> Iterator[Case]:
    """Yield cases whose compiled code is no module of IREE."""
    whole = (bases["plain"] / MODULE).read_bytes()
    while True:
        at = rng.randrange(len(whole))
        data = rng.choice([whole[:at], b"", rng.randbytes(200), bytes(64) + whole[64:]])
        changes = altered(bases["plain"], {MODULE: data})
        yield Case(f"module: {len(data)} bytes", RUN, "plain", changes, ARRAY)


def tokenizers(bases: dict[str, Path], rng: random.Random) -> Iterator[Case]:
    """Yield cases with a damaged tokenizer."""
    for what, data in mutations(json.loads((bases["toy"] / TOKENIZER).read_text()), rng):
        yield Case(f"tokenizer: {what}", CHAT, "toy", altered(bases["toy"], {TOKENIZER: data}))


def templates(bases: dict[str, Path], rng: random.Random) -> Iterator[Case]:
    """Yield cases with a chat template that fails."""
    while True:
        text = rng.choice(texts.TEMPLATES)
        changes = altered(bases["toy"], {CHAT_TEMPLATE: text})
        yield Case(f"template: {text[:40]!r}", CHAT, "toy", changes, needs_error=True)


def arrays(rng: random.Random) -> Iterator[Case]:
    """Yield cases with an input file that is no array of the right type."""
    while True:
        data = rng.choice(texts.ARRAYS)
        files = {**ARRAY, "b.npy": data}
        yield Case(f"array: {data[10:60]!r}", [*RUN[:-1], "{b.npy}"], "plain", {}, files, True)


def options(rng: random.Random) -> Iterator[Case]:
    """Yield cases with an option that makes no sense and an undamaged artifact."""
    while True:
        name, value = rng.choice(texts.OPTIONS), rng.choice(texts.VALUES)
        command = rng.choice((GENERATE, CHAT, RUN))
        base = "plain" if command is RUN else "toy"
        yield Case(
            f"option {name} {value[:30]!a} of {command[0]}",
            [*command, name, value],
            base,
            {},
            ARRAY,
        )


def compilations(rng: random.Random) -> Iterator[Case]:
    """Yield cases of `mxc compile` with invalid programs, and of `mxc opt` with invalid passes."""
    while True:
        program = rng.choice(texts.PROGRAMS)
        spec = rng.choice(texts.PASSES)
        files = {"p.mlir": program}
        name = f"{program[:40]!r}"
        yield Case(f"opt {spec} of {name}", ["opt", "{p.mlir}", "--passes", spec], files=files)
        words = ["compile", "{p.mlir}", "--target", "cpu", "--output", "{out.mxc}"]
        yield Case(f"compile {name}", words, files=files, needs_error=True)


def _array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([1, 2, 3, 4], np.float32))
    return stream.getvalue()


ARRAY = {"a.npy": _array()}


class Runner:
    """Runs cases one after the other in a child process, which is started again after it died."""

    def __init__(self, folder: Path, bases: dict[str, Path]) -> None:
        """Copy the artifacts `bases` to `folder`, an empty one in which the commands write too."""
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.bases = {name: folder / path.name for name, path in bases.items()}
        for name, path in bases.items():
            shutil.copytree(path, self.bases[name])
        self.child: Child | None = None
        self.exits: dict[int | str, int] = {}

    def wrong(self, case: Case) -> list[str]:
        """Run a case, and return how the command mishandles it: normally an empty list."""
        before = self._names()
        found = self._run(case)
        if isinstance(found, str):
            return [found]
        status, output, errors = found["status"], found["output"], found["errors"]
        self.exits[status] = self.exits.get(status, 0) + 1
        said = [line for line in errors.splitlines() if line.startswith("error: ")]
        lines = 1 if case.words[0] != "compile" else len(errors.splitlines())
        wrong = []
        if "Traceback" in errors or found["trace"]:
            wrong.append(f"a trace: {found['trace'] or errors}")
        elif status == 1 and (len(said) != 1 or len(errors.splitlines()) != lines):
            wrong.append(f"not one line: {errors!r}")
        elif status not in (0, 1, 2):
            wrong.append(f"exit status {status}")
        if status == 0 and case.needs_error:
            wrong.append(f"accepted: {output[:300]!r}")
        # The IR of a refused program is kept on purpose, and the message names its file.
        left = {name for name in self._names() - before if "/mxc-failed-" not in name}
        if left and status:
            wrong.append(f"left behind: {', '.join(sorted(left))}")
        return wrong

    def _names(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*")}

    def _run(self, case: Case) -> dict[str, Any] | str:
        """Run a case. Return the answer of `serve`, or why there is none."""
        paths = {name: self.folder / name for name in (*case.files, "out.mxc")}
        if case.base:
            paths["artifact"] = self.bases[case.base]
        kept = {}
        for name, data in case.changes.items():
            file = self.bases[case.base] / name
            kept[file] = file.read_bytes() if file.exists() else None
            _replace(file, data)
        for name, data in case.files.items():
            paths[name].write_bytes(data)
        words = case.words
        for name, path in paths.items():
            words = [word.replace("{" + name + "}", str(path)) for word in words]
        child = self.child or Child("hostile_cases:serve", str(self.temporary))
        self.child = None
        try:
            child.send(json.dumps(words).encode())
            outcome: dict[str, Any] = json.loads(child.receive(SECONDS))
        except ChildTimedOut:
            return f"no answer within {SECONDS:g} s"
        except ChildExited as ended:
            return f"the command died ({ended})"
        finally:
            for file, before in kept.items():
                file.unlink() if before is None else _replace(file, before)
            for name in case.files:
                paths[name].unlink()
        self.child = child
        return outcome


def _replace(file: Path, data: bytes) -> None:
    """Replace `file` by a new file, and do not write into the old one: it may still be mapped."""
    other = file.with_name("new")
    other.write_bytes(data)
    other.rename(file)


def serve(channel: Channel, temporary: str) -> None:
    """Run the command lines that the channel sends, and answer each. Main loop of the child."""
    os.environ["TMPDIR"] = temporary
    os.chdir(temporary)
    from typer.testing import CliRunner

    from mxc.compiler.cli import app

    while True:
        result = CliRunner().invoke(app, json.loads(channel.receive()))
        found = result.exception
        expected = found is None or isinstance(found, SystemExit)
        answer = {
            "status": result.exit_code,
            "output": result.stdout[:2000],
            "errors": result.stderr[:2000],
            "trace": "" if expected else "".join(traceback.format_exception(found))[-1500:],
        }
        channel.send(json.dumps(answer).encode())
