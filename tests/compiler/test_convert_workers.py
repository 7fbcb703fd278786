"""Conversions by processes and a cluster; killed runs, and those that go on after them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.convert.writing import ConvertedFiles
from mxc.compiler.leftovers import JOURNAL
from mxc.compiler.pieces import piece
from mxc.compiler.pieces.workers import Workers
from mxc.errors import CheckpointError, WorkerError
from tests.killed_workers import KillWorkers

DIALECTS = ("gguf", "quark")
SIZE = 30_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in") / "source"
    write_gpt_oss(folder, GptOssOptions(hidden_size=64, num_local_experts=2, vocab_size=331))
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece, "PIECE", SIZE)
    monkeypatch.setattr(piece, "CHUNK", 7000)


def files(output: Path) -> list[tuple[str, bytes]]:
    listed = [output] if output.is_file() else sorted(output.iterdir())
    return [(path.name if output.is_dir() else "", path.read_bytes()) for path in listed]


def journals(folder: Path) -> list[Path]:
    return list(folder.glob(f".*/{JOURNAL}"))


@pytest.fixture(scope="module")
def whole(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[str, bytes]]]:
    """What one process writes in one piece a tensor."""
    folder = tmp_path_factory.mktemp("whole")
    for dialect in DIALECTS:
        convert(source, dialect, folder / dialect)
    return {dialect: files(folder / dialect) for dialect in DIALECTS}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_processes_write_the_same_bytes(
    source: Path, whole: dict[str, list[tuple[str, bytes]]], tmp_path: Path, dialect: str
) -> None:
    convert(source, dialect, tmp_path / "out", workers=Workers(2))
    assert files(tmp_path / "out") == whole[dialect]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_cluster_writes_the_same_bytes(
    source: Path, whole: dict[str, list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        workers = Workers(dask=cluster.scheduler_address)
        convert(source, "gguf", tmp_path / "out", workers=workers)
    assert files(tmp_path / "out") == whole["gguf"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_killed_worker_is_an_error_and_the_next_run_resumes(
    source: Path, whole: dict[str, list[tuple[str, bytes]]], tmp_path: Path, dialect: str
) -> None:
    said: list[Any] = []
    with pytest.raises(WorkerError, match=r"out: a worker was lost .*run the same command again"):
        convert(source, dialect, tmp_path / "out", workers=Workers(2), progress=KillWorkers(5))
    (journal,) = journals(tmp_path)
    done = len(journal.read_text().splitlines()) - 1
    assert done >= 4, "those that were done stay"
    workers = Workers(2, say=said.append)
    convert(source, dialect, tmp_path / "out", workers=workers)
    assert files(tmp_path / "out") == whole[dialect]
    assert f"{done} pieces are done" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


KILLED = """
import os, sys
from pathlib import Path
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.pieces import piece
source, dialect, output = sys.argv[1:]
piece.PIECE, calls = %d, []
def kill(*call):
    calls.append(call)
    if len(calls) == 5:
        os.kill(os.getpid(), 9)
convert(Path(source), dialect, Path(output), progress=kill)
"""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_killed_command_resumes(
    source: Path,
    whole: dict[str, list[tuple[str, bytes]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED % SIZE, source, dialect, tmp_path / "out"], timeout=300
    )
    assert run.returncode == -9
    assert journals(tmp_path)
    count, compute = [], ConvertedFiles.compute

    def counted(self: ConvertedFiles, each: Any, output: Any) -> None:
        count.append(each)
        compute(self, each, output)

    monkeypatch.setattr(ConvertedFiles, "compute", counted)
    convert(source, dialect, tmp_path / "out")
    resumed = len(count)
    convert(source, dialect, tmp_path / "again")
    assert 0 < resumed <= len(count) - resumed - 5
    assert files(tmp_path / "out") == files(tmp_path / "again") == whole[dialect]
    assert not journals(tmp_path)


def test_a_refusal_of_a_worker_arrives_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "nan")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    index = json.loads((source / "model.safetensors.index.json").read_text())
    file = tmp_path / "nan" / index["weight_map"][name]
    tensors = load_file(file)
    tensors[name][0, 0, 0] = 0xFF
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="a scale is NaN"):
        convert(tmp_path / "nan", "gguf", tmp_path / "out", workers=Workers(2))
    assert [path.name for path in tmp_path.iterdir()] == ["nan"]
