"""Compiled programs that are kept on disk, so that one is not compiled twice.

An entry is one file: the module and what came out beside it, under a key of everything that they
depend on: the bytes of the program, the options of its request, the sources of mxc, the version of
IREE, and this processor where the target is the machine itself. Nothing else makes an entry
invalid, and none is ever changed. Entries are written under another name first and renamed, so
that a reader finds a whole one or none; one that was damaged later does not have its digest, and
is removed and compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from mxc.artifact.manifest import iree_version, mxc_version
from mxc.compiler.steps import Compiled, Request, Step
from mxc.targets.target import HOST, target
from mxc.targets.tile_permission import refusal

#: The most bytes of all entries: those that were used longest ago go first.
LIMIT = 1 << 30

_SUFFIX = ".compiled"
#: Fields of a request that do not change the result: names in messages, folders, time limits.
_NO_MATTER = {"place", "module", "dump_dir", "phase_timeout", "cached"}
#: The packages that a compilation imports (tests/test_architecture.py).
_SOURCES = ("artifact", "compiler", "dialects", "formats", "kernels", "passes", "targets")
#: What /proc/cpuinfo says of a processor that LLVM looks at: on x86, then on ARM.
_PROCESSOR = re.compile(
    r"^(vendor_id|cpu family|model|stepping|flags"
    r"|CPU implementer|CPU variant|CPU part|CPU revision|Features)\s*: (.*)$",
    re.MULTILINE,
)
_CPUINFO = Path("/proc/cpuinfo")

OnStep = Callable[[Step], None]


def default_folder() -> Path | None:
    """`mxc/programs` in XDG_CACHE_HOME, or in ~/.cache; None where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # as the specification of XDG has it: others are ignored
        return Path(given) / "mxc" / "programs"
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "mxc" / "programs"
    return None


@dataclass(frozen=True)
class Cache:
    """The entries in one folder, of at most `limit` bytes together."""

    folder: Path
    limit: int = LIMIT

    def entries(self) -> dict[Path, os.stat_result]:
        """Every entry, the one that was used longest ago first."""
        found = {}
        for file in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process has just removed it
                found[file] = file.stat()
        return dict(sorted(found.items(), key=lambda entry: entry[1].st_mtime_ns))

    def find(self, key: str, module: Path) -> Compiled | None:
        """What is kept under `key`, its code written to `module`; None where there is nothing.

        Raises OSError where `module` cannot be written.
        """
        file = self._file(key)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        digest, body = data[:32], data[32:]
        if hashlib.sha256(body).digest() != digest:
            file.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # a cache of another user: it can be read only
            os.utime(file)
        compiled, code = pickle.loads(body)
        assert isinstance(compiled, Compiled)
        module.write_bytes(code)
        return compiled

    def keep(self, key: str, module: Path, compiled: Compiled) -> None:
        """Keep what was compiled, and remove what is over the limit. Raises OSError."""
        body = pickle.dumps((compiled, module.read_bytes()))
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(name, self._file(key))
        except BaseException:
            os.unlink(name)
            raise
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = self.entries()
        over = sum(each.st_size for each in entries.values()) - self.limit
        for file, each in entries.items():
            if over <= 0:
                return
            file.unlink(missing_ok=True)
            over -= each.st_size
        for new in self.folder.glob(".new-*"):  # of a process that was killed
            with suppress(OSError):
                if new.stat().st_mtime < time.time() - 3600:
                    new.unlink()

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def cached(request: Request, compile: Callable[[], Compiled], on_step: OnStep | None) -> Compiled:
    """What `request` makes of its program, from the cache, or compiled and then kept in it.

    `on_step` is told that a program was found there, or why one that was compiled could not be
    kept. With a folder for IR a program is compiled in any case, because its IR was asked for.
    """
    folder = default_folder() if request.cached else None
    key = None if folder is None else key_of(request)
    if folder is None or key is None:
        return compile()
    tell = on_step or (lambda step: None)
    entries, start = Cache(folder), time.perf_counter()
    if request.dump_dir is None:
        found = entries.find(key, request.module)
        if found is not None:
            name = f"{key[:12]} was compiled before; --no-cache compiles it again"
            tell(Step(kind="cache", name=name, seconds=time.perf_counter() - start))
            return found
    compiled = compile()
    try:
        entries.keep(key, request.module, compiled)
    except OSError as error:
        name = f"not kept in {folder} ({error.strerror})"
        tell(Step(kind="cache", name=name, seconds=0.0))
    return compiled


def key_of(request: Request) -> str | None:
    """The digest of everything that the outcome depends on; None where that is not known."""
    record = target(request.target)
    parts = [mxc_version(), iree_version(), sources()]
    if record.chip == HOST and not record.is_gpu:
        processor = _processor()
        if processor is None:
            return None
        parts.append(processor)
    for field in fields(request):
        if field.name not in _NO_MATTER:
            value = getattr(request, field.name)
            if field.name == "schedules" and value:
                value = Path(value).read_bytes()
            parts.append(f"{field.name}={hashlib.sha256(repr(value).encode()).hexdigest()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _processor() -> str | None:
    """What this machine's processor is to LLVM; None where the system does not say it."""
    try:
        first = _CPUINFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
    except OSError:
        return None
    return repr([*_PROCESSOR.findall(first), refusal()])


@cache
def sources() -> str:
    """The digest of the text of mxc, as far as a compilation reads it."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in _SOURCES:
        for file in sorted((root / package).rglob("*.py")):
            text = file.read_bytes()
            digest.update(f"{file.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
