"""On-disk cache of compiled programs, and of the kernels of GPUs.

The entry of a program is one file that holds the compiled module and its `Compiled` record. Its key
is a digest of everything that the result depends on: the bytes of the program, the options of the
request, the sources of mxc, the version of IREE, and the host processor if the target is the host.
The entries of kernels are those of kernel_code.py. Entries are never changed and never become
invalid. An entry is written under a temporary name and renamed, so that a reader finds a complete
file or none. An entry whose content does not match its stored SHA-256 digest was damaged; it is
removed and the program is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from mxc.artifact.versions import iree_version, mxc_version
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep
from mxc.targets.target import HOST, target
from mxc.targets.tile_permission import refusal

#: Largest total size of all entries in bytes. The least recently used entries are removed first.
LIMIT = 1 << 30

_SUFFIX = ".compiled"
#: Fields of a request that do not change the result: names in messages, folders, time limits.
_NO_MATTER = {"place", "module", "dump_dir", "phase_timeout", "cached"}
#: The packages that a compilation imports (tests/test_architecture.py).
_SOURCES = ("artifact", "compiler", "dialects", "formats", "kernels", "passes", "targets")
#: Fields of /proc/cpuinfo that LLVM bases its choice of a processor on: on x86, then on ARM.
_PROCESSOR = re.compile(
    r"^(vendor_id|cpu family|model|stepping|flags"
    r"|CPU implementer|CPU variant|CPU part|CPU revision|Features)\s*: (.*)$",
    re.MULTILINE,
)
_CPUINFO = Path("/proc/cpuinfo")

OnStep = Callable[[CompileStep], None]


def default_folder() -> Path | None:
    """Return `mxc/programs` in $XDG_CACHE_HOME or in ~/.cache; None without a home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the XDG specification says that a relative path is ignored
        return Path(given) / "mxc" / "programs"
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "mxc" / "programs"
    return None


@dataclass(frozen=True)
class CompileCache:
    """The entries in one folder, limited to `limit` bytes in total."""

    folder: Path
    limit: int = LIMIT

    def entries(self) -> dict[Path, os.stat_result]:
        """Return all entries with their file status, least recently used first."""
        found = {}
        for file in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process has just removed it
                found[file] = file.stat()
        return dict(sorted(found.items(), key=lambda entry: entry[1].st_mtime_ns))

    def find(self, key: str, module: Path) -> Compiled | None:
        """Return the entry under `key` and write its code to `module`; None without an entry."""
        body = self.read(key)
        if body is None:
            return None
        compiled, code = pickle.loads(body)
        assert isinstance(compiled, Compiled)
        module.write_bytes(code)
        return compiled

    def keep(self, key: str, module: Path, compiled: Compiled) -> None:
        """Store a result and remove the oldest entries over the limit. Raises OSError."""
        self.write({key: pickle.dumps((compiled, module.read_bytes()))})

    def read(self, key: str) -> bytes | None:
        """Return what is stored under `key`; None if nothing is, or if it is damaged."""
        file = self._file(key)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        digest, body = data[:32], data[32:]
        if hashlib.sha256(body).digest() != digest:
            file.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # the folder may belong to another user and be read-only
            os.utime(file)
        return body

    def write(self, bodies: Mapping[str, bytes]) -> None:
        """Store entries by their keys and remove the oldest over the limit. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for key, body in bodies.items():
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(body).digest() + body)
                os.replace(name, self._file(key))
            except BaseException:
                os.unlink(name)
                raise
        if bodies:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = self.entries()
        over = sum(each.st_size for each in entries.values()) - self.limit
        for file, each in entries.items():
            if over <= 0:
                return
            file.unlink(missing_ok=True)
            over -= each.st_size
        for new in self.folder.glob(".new-*"):  # left by a process that was killed
            with suppress(OSError):
                if new.stat().st_mtime < time.time() - 3600:
                    new.unlink()

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def cached(
    request: CompileRequest, compile: Callable[[], Compiled], on_step: OnStep | None
) -> Compiled:
    """Return the result of `request` from the cache; otherwise compile it and store the result.

    `on_step` is told that the program was found in the cache, or why a result could not be stored.
    A request with a folder for IR is always compiled, because the IR has to be dumped.
    """
    folder = default_folder() if request.cached else None
    key = None if folder is None else key_of(request)
    if folder is None or key is None:
        return compile()
    tell = on_step or (lambda step: None)
    entries, start = CompileCache(folder), time.perf_counter()
    if request.dump_dir is None:
        found = entries.find(key, request.module)
        if found is not None:
            name = f"{key[:12]} was compiled before; --no-cache compiles it again"
            tell(CompileStep(kind="cache", name=name, seconds=time.perf_counter() - start))
            return found
    compiled = compile()
    try:
        entries.keep(key, request.module, compiled)
    except OSError as error:
        name = f"not kept in {folder} ({error.strerror})"
        tell(CompileStep(kind="cache", name=name, seconds=0.0))
    return compiled


def entries_of(request: CompileRequest) -> CompileCache | None:
    """Return the cache for the kernels of a program; None for a request that wants to see how they
    are compiled, or no cache.
    """
    folder = default_folder() if request.cached else None
    shown = request.assembly or request.dump_dir is not None
    return None if folder is None or shown else CompileCache(folder)


def key_of(request: CompileRequest) -> str | None:
    """Return the digest of everything that the result depends on; None if that is unknown."""
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
    """Return what LLVM knows of the host processor; None if the system does not tell."""
    try:
        first = _CPUINFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
    except OSError:
        return None
    return repr([*_PROCESSOR.findall(first), refusal()])


@cache
def sources() -> str:
    """Return the digest of the source files of mxc that a compilation imports."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in _SOURCES:
        for file in sorted((root / package).rglob("*.py")):
            text = file.read_bytes()
            digest.update(f"{file.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
