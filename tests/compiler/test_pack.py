"""The archive, against IREE's own reader and transformers' reading of the same checkpoint."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import GptOssForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.artifact.parameter_archive import ALIGNMENT, read_archive
from mxc.compiler.checkpoints.files.safetensors import read_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import Model, open_model
from mxc.compiler.packing import items as packing
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.nan_scales import NanScale
from mxc.compiler.packing.pack import pack
from mxc.compiler.packing.streams import Shard
from mxc.errors import ArtifactError, CheckpointError

GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
DOWN = "model.layers.0.mlp.experts.down_proj"


def opened(folder: Path) -> Model:
    return open_model(folder, max_sequence_length=37)


def items_of(folder: Path) -> tuple[PackItem, ...]:
    return opened(folder).pack_items({})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    options = GptOssOptions(hidden_size=96, num_local_experts=3, vocab_size=331)
    write_gpt_oss(folder, options, shards=3)
    return folder


@pytest.fixture(scope="module")
def source(folder):
    return {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}


@pytest.fixture(scope="module")
def computed(folder):
    """The tables that the compiler makes, and packs beside the tensors."""
    model = opened(folder)
    return model.decoder.generated(model.options.max_sequence_length)


def with_iree(path: Path) -> dict[str, np.ndarray]:
    index = rt.ParameterIndex()
    index.load(str(path))
    return {
        key: np.array(rt.parameter_index_entry_as_numpy_flat_ndarray(entry)).view(np.uint8)
        for key, entry in index.items()
    }


def gate_then_up(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)


# A chunk of 96 bytes: smaller than an expert, not a multiple of a row.
@pytest.mark.parametrize("chunk", [96, 1000, packing.CHUNK])
def test_iree_reads_back_the_bytes(folder, source, computed, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(packing, "CHUNK", chunk)
    calls = []
    packed = pack(
        items_of(folder),
        tmp_path / "weights.irpa",
        progress=lambda *call: calls.append(call),
    )
    wanted = {
        name: gate_then_up(array) if ".gate_up_proj_" in name else array
        for name, array in source.items()
    }
    assert computed.keys() == {"rope.cos", "rope.sin"}
    wanted |= computed
    found = with_iree(tmp_path / "weights.irpa")
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes(), name

    whole = (tmp_path / "weights.irpa").read_bytes()
    assert packed.file.bytes == len(whole)
    assert packed.file.sha256 == hashlib.sha256(whole).hexdigest()
    for name, (offset, size) in packed.entries.items():
        assert offset % ALIGNMENT == 0
        assert whole[offset : offset + size] == wanted[name].tobytes()
    assert {name: (r.bytes, r.sha256) for name, r in packed.source.items()} == {
        f.name: (f.stat().st_size, hashlib.sha256(f.read_bytes()).hexdigest())
        for f in folder.glob("*.safetensors")
    }
    assert packed.nan_scales == ()

    total = sum(array.nbytes for array in wanted.values())
    done = [d for d, _, _ in calls]
    assert done == sorted(done)
    assert done[-1] == total
    assert {t for _, t, _ in calls} == {total}
    assert {name for _, _, name in calls} == set(wanted)


def test_archives_are_byte_for_byte_those_of_iree(tmp_path):
    tensors = {"a": np.arange(100, dtype=np.uint8), "b.longer": np.arange(64, dtype=np.uint8)}
    index = rt.ParameterIndex()
    for key, array in tensors.items():
        note = {"dtype": "U8", "shape": list(array.shape), "layout": "identity"}
        index.add_buffer(key, array, metadata=json.dumps(note))
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    theirs = (tmp_path / "theirs.irpa").read_bytes()
    pack([PackItem(key=k, source=v) for k, v in tensors.items()], tmp_path / "ours.irpa")
    assert (tmp_path / "ours.irpa").read_bytes() == theirs
    entries = read_archive(tmp_path / "theirs.irpa")
    assert entries.keys() == tensors.keys()
    for key, entry in entries.items():
        assert theirs[entry.offset : entry.offset + entry.bytes] == tensors[key].tobytes()
    assert json.loads(entries["a"].metadata)["shape"] == [100]


def test_transformers_dequantises_the_packed_rows_to_its_own_weights(folder, tmp_path):
    pack(items_of(folder), tmp_path / "w.irpa")
    found = with_iree(tmp_path / "w.irpa")
    records = opened(folder).weights({})
    model = GptOssForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    experts = model.model.layers[0].mlp.experts
    for stem, theirs in ((GATE_UP, experts.gate_up_proj), (DOWN, experts.down_proj)):
        count, rows, size = records[stem].shape
        blocks = torch.from_numpy(found[f"{stem}_blocks"].reshape(count, rows, size // 32, 16))
        scales = torch.from_numpy(found[f"{stem}_scales"].reshape(count, rows, size // 32))
        ours = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        theirs = theirs.detach()  # [E, K, N]
        if stem == GATE_UP:
            assert records[stem].layout == "gate-then-up"
            theirs = torch.cat([theirs[:, :, 0::2], theirs[:, :, 1::2]], dim=2)
        assert torch.equal(ours, theirs)


def test_manifest_records_cover_the_archive(folder):
    records = opened(folder).weights({})
    items = {item.key: item for item in items_of(folder)}
    assert records[GATE_UP].shape == (3, 128, 96)
    assert records[f"{GATE_UP}_bias"].layout == "gate-then-up"
    record = records[DOWN]
    assert (record.format, record.block, record.axis) == ("mxfp4", 32, 2)
    assert (record.nibble_order, record.recipe, record.layout) == (
        "low-even",
        "unstated",
        "identity",
    )
    assert record.source == f"{DOWN}_blocks, {DOWN}_scales"
    assert records["model.norm.weight"].format == "bf16"
    assert (records["rope.cos"].source, records["rope.cos"].format) == ("generated", "f32")
    covered = {
        key
        for stem, record in records.items()
        for key in ([f"{stem}_blocks", f"{stem}_scales"] if record.block else [stem])
    }
    assert covered == set(items)


def test_a_plan_of_some_tensors_still_hashes_whole_files(folder, tmp_path):
    items = items_of(folder)
    some = [items[20], items[3]]
    packed = pack(some, tmp_path / "w.irpa")
    assert set(with_iree(tmp_path / "w.irpa")) == {item.key for item in some}
    for name, record in packed.source.items():
        assert record.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_the_same_tensor_under_two_keys(folder, tmp_path):
    record = read_checkpoint(folder).record("model.embed_tokens.weight")
    pack([PackItem(key=k, source=record) for k in ("in", "out")], tmp_path / "w.irpa")
    found = with_iree(tmp_path / "w.irpa")
    assert found["in"].tobytes() == found["out"].tobytes()


def test_overlapping_reads_are_hashed_once(tmp_path):
    content = bytes(range(200))
    (tmp_path / "a").write_bytes(content)
    with ThreadPoolExecutor(1) as pool, Shard(tmp_path / "a", pool) as shard:
        for offset, size in ((10, 20), (25, 30), (0, 5), (54, 1), (54, 2), (60, 0)):
            assert shard.read(offset, size, 7, "x").tobytes() == content[offset : offset + size]
        record = shard.finish(7)
    assert (record.bytes, record.sha256) == (200, hashlib.sha256(content).hexdigest())


def test_two_tensors_under_one_key(tmp_path):
    with pytest.raises(ValueError, match="one key"):
        pack([PackItem(key="a", source=np.zeros(1))] * 2, tmp_path / "w.irpa")


@pytest.mark.parametrize("arrays", [{}, {"empty": np.zeros((0, 4)), "x": np.ones(3)}])
def test_nothing_or_empty_tensors(tmp_path, arrays):
    pack([PackItem(key=k, source=v) for k, v in arrays.items()], tmp_path / "w.irpa")
    assert set(read_archive(tmp_path / "w.irpa")) == set(arrays)
    if arrays:
        assert with_iree(tmp_path / "w.irpa")["x"].tobytes() == np.ones(3).tobytes()


# ---- NaN scales ----


@pytest.fixture
def with_nan(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "nan")
    name = f"{GATE_UP}_scales"
    for file in (tmp_path / "nan").glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name][1, 5, 2] = tensors[name][1, 5, 0] = tensors[name][2, 127, 1] = 0xFF
            tensors[name][0, 0, 0] = 0xFE
            save_file(tensors, file)
    return tmp_path / "nan"


def test_nan_scales_are_refused_with_tensor_expert_and_row(with_nan, tmp_path):
    with pytest.raises(
        CheckpointError,
        match=rf"safetensors: tensor {GATE_UP}_scales has 3 NaN scales.*expert 1 row 5 \(2\); "
        r"expert 2 row 127 \(1\);.*--allow-nan-scales",
    ):
        pack(items_of(with_nan), tmp_path / "w.irpa")
    assert list(tmp_path.iterdir()) == [with_nan]


@pytest.mark.parametrize("chunk", [16, packing.CHUNK])
def test_nan_scales_are_noted_where_allowed(with_nan, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(packing, "CHUNK", chunk)
    packed = pack(items_of(with_nan), tmp_path / "w.irpa", allow_nan_scales=True)
    tensor = f"{GATE_UP}_scales"
    assert packed.nan_scales == (
        NanScale(tensor=tensor, expert=1, row=5, count=2),
        NanScale(tensor=tensor, expert=2, row=127, count=1),
    )


# ---- failures leave nothing behind ----


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full_while_writing(folder, tmp_path, monkeypatch, code):
    write, calls = os.write, []

    def full(handle, data):
        calls.append(len(data))
        if sum(calls) > 100_000:
            raise OSError(code, os.strerror(code))
        return write(handle, data[:1000])  # the system may write less than it is given

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtifactError, match=r"disk full: packing needs \d+ bytes, \d+ are free in"):
        pack(items_of(folder), tmp_path / "w.irpa")
    assert calls
    assert left(tmp_path) == []


def test_short_writes_are_continued(folder, tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:777]))
    packed = pack(items_of(folder), tmp_path / "w.irpa")
    whole = (tmp_path / "w.irpa").read_bytes()
    assert packed.file.sha256 == hashlib.sha256(whole).hexdigest()


def test_disk_known_to_be_too_small(folder, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ArtifactError, match=r"needs \d+ bytes, 1000 are free"):
        pack(items_of(folder), tmp_path / "w.irpa")
    assert left(tmp_path) == []


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.pack import pack
from mxc.errors import ArtifactError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    pack([PackItem(key="a", source=np.zeros(300_000, np.uint8))], Path(sys.argv[1]))
except ArtifactError as error:
    print(error)
"""


def test_the_system_refuses_to_write(tmp_path):
    path = tmp_path / "w.irpa"
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True
    )
    assert "w.irpa: cannot be written after" in run.stdout
    assert "File too large" in run.stdout
    assert left(tmp_path) == []


def test_interrupt(folder, tmp_path):
    def interrupt(done, total, name):
        assert left(tmp_path) != []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(items_of(folder), tmp_path / "w.irpa", progress=interrupt)
    assert left(tmp_path) == []


def test_source_cut_meanwhile(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "cut")
    plan = items_of(tmp_path / "cut")
    file = tmp_path / "cut" / "model-00002-of-00003.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    with pytest.raises(CheckpointError, match=rf"{file.name}: tensor .* cut while .* fetch"):
        pack(plan, tmp_path / "w.irpa")
    assert left(tmp_path) == ["cut"]


def test_existing_archive_is_kept(folder, tmp_path):
    (tmp_path / "w.irpa").write_text("mine")
    with pytest.raises(ArtifactError, match=r"w.irpa: exists; remove it or choose another"):
        pack(items_of(folder), tmp_path / "w.irpa")
    assert (tmp_path / "w.irpa").read_text() == "mine"


def test_the_folder_to_write_to_is_made(folder, tmp_path):
    pack(items_of(folder), tmp_path / "new" / "one" / "w.irpa")
    assert left(tmp_path / "new" / "one") == ["w.irpa"]
    with pytest.raises(ArtifactError, match=r"w.irpa: cannot be made \(File exists\)"):
        pack(items_of(folder), tmp_path / "new" / "one" / "w.irpa" / "w.irpa")


def test_folder_that_cannot_be_written(folder, tmp_path, monkeypatch):
    # Root may write anywhere, so the system's answer is given by hand.
    def refuse(path, flags, mode=0o777):
        raise PermissionError(errno.EACCES, "Permission denied")

    plan = items_of(folder)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ArtifactError, match=r"w.irpa: cannot be written \(Permission denied\)"):
        pack(plan, tmp_path / "w.irpa")


def test_metadata_says_dtype_shape_and_layout(folder, tmp_path):
    pack(items_of(folder), tmp_path / "w.irpa")
    note = json.loads(read_archive(tmp_path / "w.irpa")[f"{GATE_UP}_blocks"].metadata)
    assert note == {"dtype": "U8", "shape": [3, 128, 3, 16], "layout": "gate-then-up"}
