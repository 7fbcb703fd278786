"""A program that was compiled before is not compiled again, and another one always is."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mxc
from mxc.compiler import cache
from mxc.compiler.cache import CompileCache, cached, default_folder, key_of
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep

PROGRAM = b"""func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
COMPILED = Compiled(functions={}, report={"kernels": []}, chip="a chip", features=("sse",))


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileRequest:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    module = tmp_path / "m.vmfb"
    return CompileRequest(program=PROGRAM, place="p", target="cpu", module=module, cached=True)


@pytest.fixture
def entries(request_: CompileRequest) -> CompileCache:
    folder = default_folder()
    assert folder is not None
    return CompileCache(folder)


def writes(request: CompileRequest, code: bytes = b"code") -> Callable[[], Compiled]:
    """A compilation that leaves this code."""

    def compile() -> Compiled:
        request.module.write_bytes(code)
        return COMPILED

    return compile


def never() -> Compiled:
    raise AssertionError("compiled again")


def test_the_second_time_nothing_is_compiled(
    request_: CompileRequest, entries: CompileCache
) -> None:
    steps: list[CompileStep] = []
    assert cached(request_, writes(request_), steps.append) == COMPILED
    assert steps == []
    request_.module.unlink()
    elsewhere = replace(request_, module=request_.module.with_name("n.vmfb"), place="q")
    assert cached(elsewhere, never, steps.append) == COMPILED
    assert elsewhere.module.read_bytes() == b"code"
    (step,) = steps
    assert step.kind == "cache"
    assert step.seconds is not None
    assert "--no-cache" in str(step)
    (entry,) = entries.entries()
    assert entry.name.startswith(step.name[:12])


def test_a_compiler_is_not_started_again(tmp_path: Path, request_: CompileRequest) -> None:
    source = tmp_path / "p.mlir"
    source.write_bytes(PROGRAM)
    found = [
        mxc.compile(source, output=tmp_path / "new" / f"{number}.mxc", cache=number < 2)
        for number in range(3)
    ]
    kinds = []
    for each in found:
        steps = json.loads((each.path / "report.json").read_text())["steps"]
        kinds.append({step["kind"] for step in steps})
    assert kinds[0] == kinds[2] == {"part", "stage", "phase", "report"}
    assert kinds[1] == {"part", "cache"}
    first, second, third = ((each.path / "module.vmfb").read_bytes() for each in found)
    assert first == second == third


@pytest.mark.parametrize(
    "change",
    [
        {"program": PROGRAM + b" "},
        {"target": "cpu:haswell"},
        {"parameters": True},
        {"assembly": True},
        {"listed": False},
    ],
    ids=str,
)
def test_what_is_asked_for_is_in_the_key(request_: CompileRequest, change: dict[str, Any]) -> None:
    assert key_of(replace(request_, **change)) != key_of(request_)


def test_the_content_of_a_file_of_schedules_is_in_the_key(
    request_: CompileRequest, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.json"
    file.write_text("[]")
    with_it = replace(request_, schedules=str(file))
    before = key_of(with_it)
    assert before != key_of(request_)
    file.write_text("[{}]")
    assert key_of(with_it) != before


def test_the_processor_is_in_the_key_of_the_host_alone(
    request_: CompileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = replace(request_, target="cpu:haswell")
    keys = []
    for flags in ("fpu sse", "fpu sse avx2"):
        file = tmp_path / "cpuinfo"
        file.write_text(
            f"processor\t: 0\nmodel\t\t: 6\ncpu MHz\t: {len(flags)}\nflags\t: {flags}\n"
        )
        monkeypatch.setattr(cache, "_CPUINFO", file)
        keys.append((key_of(request_), key_of(named)))
    (host, one), (other_host, same) = keys
    assert host != other_host
    assert one == same
    monkeypatch.setattr(cache, "_CPUINFO", tmp_path / "none")
    assert key_of(request_) is None
    assert key_of(named) == one
    assert cached(request_, writes(request_), None) == COMPILED  # compiled, as it cannot be known


def test_versions_and_sources_are_in_the_key(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(request_)
    for name in ("mxc_version", "iree_version", "sources"):
        with monkeypatch.context() as patch:
            patch.setattr(cache, name, lambda: "another")
            assert key_of(request_) != before


def test_every_source_that_a_compilation_reads_is_in_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for package in cache._SOURCES:
        file = tmp_path / package / "within" / "a.py"
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "compiler" / "cache.py"))
    for package in cache._SOURCES:
        (tmp_path / package / "within" / "a.py").write_text("pass")
        digests.add(cache.sources.__wrapped__())
    assert len(digests) == len(cache._SOURCES)


def test_a_damaged_entry_is_compiled_again(request_: CompileRequest, entries: CompileCache) -> None:
    cached(request_, writes(request_), None)
    (entry,) = entries.entries()
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    cached(request_, writes(request_, b"again"), None)
    assert request_.module.read_bytes() == b"again"
    assert cached(request_, never, None) == COMPILED


def test_what_was_used_longest_ago_goes_first(request_: CompileRequest, tmp_path: Path) -> None:
    small = CompileCache(tmp_path / "small", limit=6000)
    for number, key in enumerate(("a", "b", "c")):
        writes(request_, bytes(1500))()
        small.keep(key, request_.module, COMPILED)
        os.utime(small.folder / f"{key}.compiled", (number, number))
    assert small.find("a", request_.module) == COMPILED  # used now
    writes(request_, bytes(1500))()
    small.keep("d", request_.module, COMPILED)
    assert [file.stem for file in small.entries()] == ["c", "a", "d"]
    assert not list(small.folder.glob(".new-*"))


def test_what_cannot_be_kept_is_said(request_: CompileRequest, entries: CompileCache) -> None:
    entries.folder.parent.mkdir(parents=True)
    entries.folder.write_text("a file")
    steps: list[CompileStep] = []
    assert cached(request_, writes(request_), steps.append) == COMPILED
    assert [step.kind for step in steps] == ["cache"]
    assert "not kept in" in str(steps[0])


def test_ir_that_is_asked_for_is_made(request_: CompileRequest, tmp_path: Path) -> None:
    cached(request_, writes(request_), None)
    cached(replace(request_, dump_dir=tmp_path), writes(request_, b"dumped"), None)
    assert request_.module.read_bytes() == b"dumped"
