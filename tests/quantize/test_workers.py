"""Pieces by threads, processes and a cluster; killed runs, and those that go on after them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mxc.compiler.leftovers import JOURNAL
from mxc.compiler.pieces import piece
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import CheckpointError, RequestError, WorkerError
from tests.killed_workers import KillWorkers
from tests.quantize.conftest import Write

FORMATS = ("mxfp4", "nvfp4")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece, "PIECE", 3000)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def journals(folder: Path) -> list[Path]:
    return list(folder.glob(f".*/{JOURNAL}"))


@pytest.mark.parametrize("format", FORMATS)
def test_two_processes_write_the_same_bytes(checkpoint: Write, tmp_path: Path, format: str) -> None:
    source = checkpoint()
    one = quantize_checkpoint(source, tmp_path / "one", format)
    two = quantize_checkpoint(source, tmp_path / "two", format, workers=Workers(2))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert one.losses == two.losses
    assert JOURNAL not in files(tmp_path / "two")
    assert not journals(tmp_path)


def test_a_cluster_writes_the_same_bytes(checkpoint: Write, tmp_path: Path) -> None:
    from distributed import LocalCluster

    source = checkpoint()
    quantize_checkpoint(source, tmp_path / "one", "nvfp4")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        workers = Workers(dask=cluster.scheduler_address)
        quantize_checkpoint(source, tmp_path / "two", "nvfp4", workers=workers)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_killed_worker_is_an_error_and_the_next_run_resumes(
    checkpoint: Write, tmp_path: Path
) -> None:
    source = checkpoint()
    said: list[str] = []
    quantize_checkpoint(source, tmp_path / "whole", "mxfp4")
    with pytest.raises(WorkerError, match=r"out: a worker was lost .*run the same command again"):
        quantize_checkpoint(
            source, tmp_path / "out", "mxfp4", workers=Workers(2), progress=KillWorkers(5)
        )
    (journal,) = journals(tmp_path)
    before = len(journal.read_text().splitlines())
    assert before >= 5
    # Another output in the same folder leaves it alone.
    quantize_checkpoint(source, tmp_path / "other", "mxfp4")
    assert journal.exists()
    workers = Workers(2, say=said.append)
    quantize_checkpoint(source, tmp_path / "out", "mxfp4", workers=workers)
    assert files(tmp_path / "whole") == files(tmp_path / "out")
    assert f"{before - 1} pieces are done" in said[0]
    assert not journals(tmp_path)


KILLED = """
import os, sys
from pathlib import Path
from mxc.compiler.pieces import piece
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
source, output, format, processes = sys.argv[1:]
piece.PIECE, calls = 3000, []
def kill(*call):
    calls.append(call)
    if len(calls) == 5:
        os.kill(os.getpid(), 9)
if __name__ == "__main__":
    workers = Workers(int(processes))
    quantize_checkpoint(source, Path(output), format, workers=workers, progress=kill)
"""


def killed(source: Path, output: Path, format: str, processes: int) -> None:
    script = output.parent / "killed.py"
    script.write_text(KILLED)
    run = subprocess.run(
        [sys.executable, script, source, output, format, str(processes)], timeout=300
    )
    script.unlink()
    assert run.returncode == -9


def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Counts the pieces that this process computes."""
    from mxc.compiler.quantize.write import QuantizedFiles

    found, compute = [], QuantizedFiles.compute

    def counted(self: Any, piece: Any, output: Any) -> Any:
        found.append(piece)
        return compute(self, piece, output)

    monkeypatch.setattr(QuantizedFiles, "compute", counted)
    return found


@pytest.mark.parametrize(("format", "processes"), [("mxfp4", 1), ("nvfp4", 2)])
def test_a_killed_command_resumes(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, processes: int
) -> None:
    source, count = checkpoint(), computed(monkeypatch)
    quantize_checkpoint(source, tmp_path / "whole", format)
    every = len(count)
    killed(source, tmp_path / "out", format, processes)
    count.clear()
    result = quantize_checkpoint(source, tmp_path / "out", format)
    assert 0 < len(count) <= every - 5
    assert files(tmp_path / "whole") == files(tmp_path / "out")
    assert result.total.sqnr is not None
    assert not journals(tmp_path)


CONVERTING = """
import os, sys
from pathlib import Path
from mxc.compiler.convert.writing import ConvertedFiles
from mxc.compiler.pieces import piece
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
source, output, format, dialect = sys.argv[1:]
piece.PIECE, count, compute = 3000, [], ConvertedFiles.compute
def kill(self, piece, output):
    count.append(piece)
    if len(count) == 12:
        os.kill(os.getpid(), 9)
    return compute(self, piece, output)
ConvertedFiles.compute = kill
quantize_checkpoint(source, Path(output), format, dialect=dialect)
"""


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize("dialect", ["gguf", "torchao"])
def test_a_conversion_that_was_killed_resumes(
    llama: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    from mxc.compiler.convert import writing

    source, count = llama(LLAMA), computed(monkeypatch)
    written, put = [], writing.ConvertedFiles.compute
    script, out = tmp_path / "killed.py", tmp_path / "out"
    script.write_text(CONVERTING)
    run = subprocess.run([sys.executable, script, source, out, "mxfp4", dialect], timeout=300)
    script.unlink()
    assert run.returncode == -9

    def counted(self: Any, piece: Any, output: Any) -> Any:
        written.append(piece)
        return put(self, piece, output)

    monkeypatch.setattr(writing.ConvertedFiles, "compute", counted)
    result = quantize_checkpoint(source, out, "mxfp4", dialect=dialect)
    assert count == [], "nothing is quantized again"
    rest = len(written)
    other = quantize_checkpoint(source, tmp_path / "whole", "mxfp4", dialect=dialect)
    assert 0 < rest < len(written) - rest
    assert result.bytes_written == other.bytes_written
    if dialect == "gguf":
        assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    else:
        assert files(out) == files(tmp_path / "whole")
    assert [*tmp_path.glob(".*")] == []


def test_bytes_that_were_lost_are_computed_again(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, count = checkpoint(), computed(monkeypatch)
    quantize_checkpoint(source, tmp_path / "whole", "mxfp4")
    every = len(count)
    killed(source, tmp_path / "out", "mxfp4", 1)
    (journal,) = journals(tmp_path)
    entries = [json.loads(line) for line in journal.read_text().splitlines()][1:]
    for name, offset, size in entries[0]["ranges"]:
        with (journal.parent / name).open("r+b") as file:
            file.seek(offset)
            file.write(bytes(byte ^ 1 for byte in b"\0" * size))
    with journal.open("a") as file:
        file.write('{"piece": "cut o')  # by a kill
    count.clear()
    quantize_checkpoint(source, tmp_path / "out", "mxfp4")
    assert len(count) == every - len(entries) + 1
    assert files(tmp_path / "whole") == files(tmp_path / "out")


@pytest.mark.parametrize("change", ["options", "source"])
def test_another_request_does_not_take_it(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, count = checkpoint(), computed(monkeypatch)
    said: list[str] = []
    killed(source, tmp_path / "out", "mxfp4", 1)
    (journal,) = journals(tmp_path)
    if change == "source":
        os.utime(source / "config.json", ns=(1, 1))
    ties = "away" if change == "options" else None
    workers = Workers(say=said.append)
    quantize_checkpoint(source, tmp_path / "whole", "mxfp4", ties=ties)
    every = len(count)
    count.clear()
    quantize_checkpoint(source, tmp_path / "out", "mxfp4", ties=ties, workers=workers)
    assert len(count) == every
    assert said == []
    assert not journal.parent.exists()
    assert files(tmp_path / "whole") == files(tmp_path / "out")


def test_refusals_of_workers_arrive_and_leave_nothing(checkpoint: Write, tmp_path: Path) -> None:
    import numpy as np

    name = "model.layers.1.mlp.down_proj.weight"
    source = checkpoint(extra={name: np.full((64, 160), np.nan, np.float32)})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=rf"{name}: row 0, column 0 is nan"):
        quantize_checkpoint(source, tmp_path / "out", "mxfp4", workers=Workers(2))
    assert sorted(tmp_path.iterdir()) == before


def test_workers_that_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="--workers"):
        Workers(2, dask="tcp://localhost:1")
    with pytest.raises(RequestError, match="--threads"):
        Workers(2, threads=3)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(RequestError, match=r"pip install 'mxc\[dask\]'"),
        Workers(dask="tcp://localhost:1").executor(),
    ):
        pass
