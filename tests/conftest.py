"""A small artifact that is compiled once, for the tests of the runtime and of the command line."""

import functools
import gc
import hashlib
import os
import platform
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import tools
from tokenizers import Tokenizer, models, pre_tokenizers

from mxc.artifact.manifest import (
    MANIFEST,
    MODULE,
    STEP,
    TOKENIZER,
    WEIGHTS,
    FileRecord,
    Function,
    Manifest,
    ModelRecord,
    PageRecord,
    TargetRecord,
    TensorType,
)
from mxc.artifact.versions import iree_version, mxc_version
from mxc.runtime.integrity import step_types
from mxc.targets.tile_permission import refusal
from tests import browser, forked, forked_child, kept_code

# Every worker has a core: torch's threads, one a core of each worker, would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Until the tests are collected there is no garbage worth the search.
gc.disable()

# A pass that uses an operation which it has erased fails (passes/rewriting/sanitizer.py).
os.environ["MXC_SANITIZE_PASSES"] = "1"

# Tests run kernels without the session that asks for tiles.
refusal()

# A shell that runs the tests in the background lets them ignore interrupts, and with them every
# process that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent


@functools.cache
def server() -> forked.Server:
    """Started by the first compilation."""
    return forked.Server()


_ONE = threading.Lock()


def place() -> str:
    """Where the server is: of two threads that compile first, both have the same one."""
    with _ONE:
        return server().place


forked_child.use(place)
kept_code.use()


def pytest_configure(config: pytest.Config) -> None:
    """What is compiled twice is compiled once: in a cache of this run, which its workers share.

    Code that IREE has generated is kept for later runs, in .pytest_cache (kept_code.py).
    """
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="mxc-cache-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = folder.name
        if hasattr(config, "cache"):  # not with -p no:cacheprovider
            kept = config.cache.mkdir("code")
            os.environ[kept_code.FOLDER] = str(kept)
            config.add_cleanup(lambda: kept_code.trim(kept))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a browser where there is none and none is required."""
    if browser.command() is None and browser.REQUIRED not in os.environ:
        needs = [item for item in items if item.get_closest_marker("browser")]
        config.hook.pytest_deselected(items=needs)
        items[:] = [item for item in items if item not in needs]


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives until the end: torch, transformers, the tests.

    Looking through it again and again took a fifth of the time in which they are imported.
    """
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the end of the process collect everything: nanobind lists what is left."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so."""
    if browser.command() is None and browser.REQUIRED not in os.environ:
        terminalreporter.write_line(browser.MISSING)


ARCHITECTURE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def tensor(dtype: str, *shape: int) -> TensorType:
    return TensorType(shape=shape, dtype=dtype)


TOY_MODEL = ModelRecord(
    architecture="toy",
    vocab_size=7,
    max_sequence_length=16,
    page_size=4,
    pages=(PageRecord(window=None, shape=(1, 4, 1, 1), dtype="f32"),),
    rows=4,
    bytes_per_token=4,
)
MEMORY_MODEL = replace(
    TOY_MODEL,
    architecture="memory",
    max_sequence_length=64,
    pages=(*TOY_MODEL.pages, PageRecord(window=6, shape=(1, 4, 2, 3), dtype="f32")),
    rows=16,
    states={"squares": tensor("f32", 1, 1)},
    bytes_per_token=28,
    bytes_per_sequence=4,
)
PLAIN_FUNCTIONS = {
    "main": Function(inputs=(tensor("f32", 4), tensor("f32", 4)), outputs=(tensor("f32", 4),)),
    "types": Function(
        inputs=(tensor("bf16", 4), tensor("i1", -1, 4), tensor("i32"), tensor("f8E4M3FN", 2)),
        outputs=(tensor("bf16", 4), tensor("i1", -1, 4), tensor("i32"), tensor("f8E4M3FN", 2)),
    ),
    "rank0": Function(inputs=(tensor("f32"), tensor("f32")), outputs=(tensor("f32"),)),
    "touch": Function(inputs=(tensor("i8", 4),), outputs=(tensor("i8", 4),)),
    "weighted": Function(inputs=(tensor("f32", 4),), outputs=(tensor("f32", 4),)),
    "mixed": Function(inputs=(tensor("f32", 4096),), outputs=(tensor("f32"),)),
}


def record(file: Path) -> FileRecord:
    data = file.read_bytes()
    return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def write_artifact(folder: Path, functions: dict[str, Function], model: ModelRecord | None) -> None:
    """manifest.json over the files that are in `folder` already."""
    manifest = Manifest(
        mxc_version=mxc_version(),
        iree_version=iree_version(),
        target=TargetRecord(
            name="cpu", device="local-task", architecture=ARCHITECTURE, chip="host"
        ),
        activations="f32",
        functions=functions,
        files={file.name: record(file) for file in sorted(folder.iterdir())},
        model=model,
    )
    (folder / MANIFEST).write_text(manifest.to_json())


def compile_module(source: Path, folder: Path) -> None:
    tools.compile_file(
        str(source),
        output_file=str(folder / MODULE),
        extra_args=[
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=generic",
        ],
    )


def make_toy(folder: Path, source: str = "toy.mlir", model: ModelRecord = TOY_MODEL) -> Path:
    """An artifact of a language model of seven tokens, in a new folder."""
    folder.mkdir()
    compile_module(HERE / "runtime" / source, folder)
    words = {f"w{n}": n for n in range(7)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / TOKENIZER))
    write_artifact(folder, {STEP: step_types(model)}, model)
    return folder


def make_plain(folder: Path) -> Path:
    """An artifact of a program with several functions and one parameter, in a new folder."""
    folder.mkdir()
    compile_module(HERE / "runtime/plain.mlir", folder)
    rt.save_archive_file(
        {"scale": np.array([1.0, 10.0, 100.0, 1000.0], np.float32)}, folder / WEIGHTS
    )
    write_artifact(folder, PLAIN_FUNCTIONS, None)
    return folder


@pytest.fixture(scope="session")
def _toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("toy") / "toy.mxc")


@pytest.fixture(scope="session")
def memory_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/runtime/memory.mlir, compiled: a test must not alter it."""
    return make_toy(tmp_path_factory.mktemp("memory") / "memory.mxc", "memory.mlir", MEMORY_MODEL)


@pytest.fixture(scope="session")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plain(tmp_path_factory.mktemp("plain") / "plain.mxc")


@pytest.fixture
def toy_artifact(_toy: Path, tmp_path: Path) -> Path:
    """A copy of tests/runtime/toy.mlir, compiled: a test may alter it."""
    return Path(shutil.copytree(_toy, tmp_path / "toy.mxc"))


@pytest.fixture
def plain_artifact(_plain: Path, tmp_path: Path) -> Path:
    """A copy of tests/runtime/plain.mlir, compiled: a test may alter it."""
    return Path(shutil.copytree(_plain, tmp_path / "plain.mxc"))


@pytest.fixture
def rewrite() -> Callable[..., None]:
    """Replace fields of an artifact's manifest: `rewrite(folder, mxc_version="9")`."""

    def change(folder: Path, **fields: Any) -> None:
        file = folder / MANIFEST
        manifest = Manifest.from_json(file.read_text(), str(file))
        file.write_text(replace(manifest, **fields).to_json())

    return change
