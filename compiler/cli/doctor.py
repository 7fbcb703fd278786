"""`mxc doctor`: describes this machine and environment, and what can run here."""

from __future__ import annotations

import importlib.metadata
import json as json_text
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from mxc.compiler.cli.terminal import Wide
from mxc.errors import MxcError

#: "ok"; "note": something limits what runs, or its speed; "wrong": mxc does not work without it.
State = Literal["ok", "note", "wrong"]
_STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}
_MEMORY = Path("/proc/meminfo")
#: Name and version of a pinned requirement, "iree-base-compiler==3.13.0".
_PINNED = re.compile(r"^([\w.-]+?)==([\w.]+)$")


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the result: the subject, what was found, and advice if it is not ok."""

    subject: str
    found: str
    state: State = "ok"
    advice: str = ""


def command(
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """Look at this machine and environment: versions, CPU, memory, GPUs, and what will run.

    The exit status is 1 where something is wrong, without which mxc does not work.
    """
    found = list(examine())
    if json:
        print(json_text.dumps([asdict(each) for each in found], indent=1))
    else:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        from mxc.compiler.cli.terminal import table_console

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("", ""):
            table.add_column(heading, no_wrap=True)
        table.add_column("found")
        for each in found:
            told = f"{each.found}; {each.advice}" if each.advice else each.found
            table.add_row(each.subject, Text(each.state, style=_STYLES[each.state]), Text(told))
        table_console(wide=wide).print(table)
    if any(each.state == "wrong" for each in found):
        raise typer.Exit(1)


def examine() -> Iterator[DoctorFinding]:
    """Yield all findings in the order in which mxc needs them. A failed check is a finding too."""
    checks: tuple[Callable[[], Iterator[DoctorFinding]], ...] = (
        _python, _packages, _processor, _tiles, _scheduling, _memory, _folders, _compile_cache,
        _gpus, _extras,
    )  # fmt: skip
    for check in checks:
        try:
            yield from check()
        except (MxcError, OSError, RuntimeError, ImportError) as error:
            name = check.__name__.strip("_")
            yield DoctorFinding(name, " ".join(str(error).split()) or type(error).__name__, "wrong")


def _python() -> Iterator[DoctorFinding]:
    wanted = importlib.metadata.metadata("mxc")["Requires-Python"]
    bounds = [tuple(map(int, each.split("."))) for each in re.findall(r"[\d.]+", wanted)]
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if min(bounds) <= sys.version_info[:2] < max(bounds):
        yield DoctorFinding("Python", found)
    else:
        yield DoctorFinding("Python", found, "wrong", f"mxc needs {wanted}")


def _packages() -> Iterator[DoctorFinding]:
    """Check the packages with pinned versions: IR, flags and bytecode depend on the version."""
    for requirement in importlib.metadata.requires("mxc") or ():
        pinned = _PINNED.match(requirement)
        if pinned is None:
            continue
        name, wanted = pinned.groups()
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        right = found == wanted
        cure = "" if right else f"pip install {name}=={wanted}"
        yield DoctorFinding(name, found, "ok" if right else "wrong", cure)


def _processor() -> Iterator[DoctorFinding]:
    from mxc.compiler.iree import resolve
    from mxc.passes.kernels.cpu.isa import best_isa
    from mxc.runtime.machine import cpu_quota, is_confined, physical_cores
    from mxc.targets.target import target

    record = resolve(target("cpu"))
    isa = best_isa(record)
    yield DoctorFinding("CPU", f"{record.chip} ({record.architecture}) as LLVM knows it")
    if isa is None:
        yield DoctorFinding(
            "kernels", "none of mxc's instruction sets", "note", "products are IREE's"
        )
    else:
        yield DoctorFinding("kernels", isa + (f"; {record.slow_bf16}" if record.slow_bf16 else ""))
    quota = cpu_quota()
    limits = ["a subset of the CPUs"] if is_confined() else []
    limits += [f"a quota of {quota:g} CPUs"] if quota is not None else []
    told = f"{physical_cores()} used" + (f", within {' and '.join(limits)}" if limits else "")
    yield DoctorFinding("cores", told)


def _tiles() -> Iterator[DoctorFinding]:
    from mxc.runtime.machine import cpu_flags
    from mxc.targets.tile_permission import refusal

    if "amx_tile" not in (cpu_flags() or ()):
        return
    refused = refusal()
    if refused is None:
        yield DoctorFinding("AMX tiles", "permission is given")
    else:
        yield DoctorFinding("AMX tiles", refused, "note", "AVX-512 runs instead")


def _scheduling() -> Iterator[DoctorFinding]:
    from mxc.runtime.device import without_preempting

    if not hasattr(os, "SCHED_BATCH"):
        return
    with without_preempting() as granted:
        pass
    if granted:
        yield DoctorFinding("scheduling", "calls wait with the policy SCHED_BATCH")
    else:
        found = "threads cannot have the policy SCHED_BATCH"
        yield DoctorFinding("scheduling", found, "note", "some tokens take 4 ms longer")


def _memory() -> Iterator[DoctorFinding]:
    if not _MEMORY.exists():
        return
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", _MEMORY.read_text(), re.MULTILINE))
    total, free = (int(kib[key]) / 2**20 for key in ("MemTotal", "MemAvailable"))
    yield DoctorFinding("memory", f"{total:.1f} GiB, {free:.1f} GiB of it free")


def _folders() -> Iterator[DoctorFinding]:
    folder = tempfile.gettempdir()
    with tempfile.NamedTemporaryFile(dir=folder):
        pass
    room = os.statvfs(folder)
    yield DoctorFinding(
        "temporary files", f"{folder}, {room.f_bavail * room.f_frsize / 2**30:.1f} GiB free"
    )


def _compile_cache() -> Iterator[DoctorFinding]:
    from mxc.compiler.cache import CompileCache, default_folder

    folder = default_folder()
    if folder is None:
        advice = "set XDG_CACHE_HOME, and a program is not compiled twice"
        yield DoctorFinding("compile cache", "none: no home folder is known", "note", advice)
        return
    entries = CompileCache(folder)
    used = sum(each.st_size for each in entries.entries().values())
    found = f"{len(entries.entries())} entries, {used / 2**20:.0f} of {entries.limit >> 20} MiB"
    yield DoctorFinding("compile cache", f"{folder}: {found}")


def _gpus() -> Iterator[DoctorFinding]:
    from mxc.errors import ArtifactError
    from mxc.runtime.device import open_device

    try:
        open_device("hip", 1, "")
    except ArtifactError:
        found = "none that IREE's driver hip can open"
        yield DoctorFinding(
            "AMD GPU", found, "note", "code for gfx950 and gfx942 runs on the simulator"
        )
    else:
        yield DoctorFinding("AMD GPU", "IREE's driver hip opens one")


def _extras() -> Iterator[DoctorFinding]:
    """Check each extra of mxc for packages that are not installed."""
    metadata = importlib.metadata.metadata("mxc")
    wanted: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("mxc") or ():
        name, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if extra is not None:
            wanted.setdefault(extra[1], []).append(re.split(r"[<>=~! \[]", name, maxsplit=1)[0])
    for extra in metadata.get_all("Provides-Extra") or ():
        missing = [name for name in wanted.get(extra, ()) if not _is_installed(name)]
        if not missing:
            yield DoctorFinding(f"extra {extra}", "installed")
        else:
            told = f"not installed: {', '.join(missing)}"
            yield DoctorFinding(
                f"extra {extra}", told, "note", f"pip install 'mxc[{extra}]' if wanted"
            )


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
