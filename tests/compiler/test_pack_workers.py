"""Archives packed by processes and a cluster; killed runs, and those that go on after them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.leftovers import JOURNAL
from mxc.compiler.models.model import open_model
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.pack import Packed, Packing
from mxc.compiler.pieces import piece
from mxc.compiler.pieces.workers import Workers
from mxc.errors import WorkerError
from tests.killed_workers import KillWorkers
from tests.packed_file import packed_file

#: A folder, and a file whose blocks are decoded by codecs.
KINDS = ("folder", "gguf")
GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
PANELS = {
    f"{GATE_UP}_blocks": "panel16x4",
    f"{GATE_UP}_scales": "panel16x1",
    "lm_head.weight_blocks": "panel16x4",
}
SIZE = 30_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece, "PIECE", SIZE)
    monkeypatch.setattr(piece, "CHUNK", 7000)


def plan_of(source: Path) -> tuple[PackItem, ...]:
    model = open_model(source, max_sequence_length=64, quantize_dense="mxfp8", devices=1)
    return model.pack_items(PANELS)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PackItem, ...]]:
    folder = tmp_path_factory.mktemp("in")
    options = GptOssOptions(hidden_size=96, num_local_experts=2, vocab_size=331)
    write_gpt_oss(folder / "folder", options, tokenizer=False)
    convert(folder / "folder", "gguf", folder / "gguf.gguf")
    return {kind: plan_of(next(folder.glob(f"{kind}*"))) for kind in KINDS}


@pytest.fixture(scope="module")
def whole(
    plans: dict[str, tuple[PackItem, ...]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Packed, bytes]]:
    """What one process packs in one piece an item: the description and the bytes."""
    folder = tmp_path_factory.mktemp("whole")
    return {
        kind: (packed_file(plan, folder / kind), (folder / kind).read_bytes())
        for kind, plan in plans.items()
    }


def journals(folder: Path) -> list[Path]:
    return list(folder.glob(f".*/{JOURNAL}"))


def check(found: Packed, path: Path, whole: tuple[Packed, bytes]) -> None:
    packed, data = whole
    assert path.read_bytes() == data
    assert (found.file, found.source, found.entries) == (packed.file, packed.source, packed.entries)
    assert {key: loss.sqnr for key, loss in found.losses.items()} == {
        key: loss.sqnr for key, loss in packed.losses.items()
    }
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_pack_the_same_bytes(
    plans: dict[str, tuple[PackItem, ...]],
    whole: dict[str, tuple[Packed, bytes]],
    tmp_path: Path,
    kind: str,
) -> None:
    found = packed_file(plans[kind], tmp_path / "w.irpa", workers=Workers(2))
    check(found, tmp_path / "w.irpa", whole[kind])


def test_a_cluster_packs_the_same_bytes(
    plans: dict[str, tuple[PackItem, ...]], whole: dict[str, tuple[Packed, bytes]], tmp_path: Path
) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        workers = Workers(dask=cluster.scheduler_address)
        found = packed_file(plans["gguf"], tmp_path / "w.irpa", workers=workers)
    check(found, tmp_path / "w.irpa", whole["gguf"])


def test_a_killed_worker_is_an_error_and_the_next_run_resumes(
    plans: dict[str, tuple[PackItem, ...]], whole: dict[str, tuple[Packed, bytes]], tmp_path: Path
) -> None:
    said: list[str] = []
    path = tmp_path / "w.irpa"
    with pytest.raises(WorkerError, match=r"w.irpa: a worker was lost .*run the same command"):
        packed_file(plans["gguf"], path, workers=Workers(2), progress=KillWorkers(5))
    (journal,) = journals(tmp_path)
    done = len(journal.read_text().splitlines()) - 1
    assert done >= 4
    found = packed_file(plans["gguf"], path, workers=Workers(2, say=said.append))
    check(found, path, whole["gguf"])
    assert f"{done} pieces are done" in said[0]


KILLED = """
import os, sys
from pathlib import Path
from mxc.compiler.models.model import open_model
from mxc.compiler.packing.pack import pack
from mxc.compiler.pieces import piece
source, output = map(Path, sys.argv[1:])
piece.PIECE, calls = %d, []
def kill(*call):
    calls.append(call)
    if len(calls) == 5:
        os.kill(os.getpid(), 9)
model = open_model(source, max_sequence_length=64, quantize_dense="mxfp8")
pack({output.name: model.pack_items(%r)}, output.parent, output, progress=kill)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_is_resumed(
    plans: dict[str, tuple[PackItem, ...]],
    whole: dict[str, tuple[Packed, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    record = next(item.records[0] for item in plans[kind] if item.records)
    source = record.file if kind == "gguf" else record.file.parent
    script, path = KILLED % (SIZE, PANELS), tmp_path / "w.irpa"
    assert subprocess.run([sys.executable, "-c", script, source, path]).returncode == -9
    assert journals(tmp_path)
    count, compute = [], Packing.compute

    def counted(self: Packing, each: Any, output: Any) -> Any:
        count.append(each)
        return compute(self, each, output)

    monkeypatch.setattr(Packing, "compute", counted)
    check(packed_file(plans[kind], path), path, whole[kind])
    resumed = len(count)
    path.unlink()
    check(packed_file(plans[kind], path), path, whole[kind])
    assert 0 < resumed <= len(count) - resumed - 5
