"""The archive, against IREE's own reader and transformers' reading of the same checkpoint."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import iree.runtime as rt
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import GptOssForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.artifact.parameter_archive import ALIGNMENT, read_archive
from mxc.compiler.checkpoints.files.safetensors import read_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.compilation import _describe
from mxc.compiler.models.model import BoundModel, open_model
from mxc.compiler.packing.float_scales import FloatRowScales
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.nan_scales import NanScale
from mxc.compiler.pieces import piece
from mxc.errors import ArtifactError, CheckpointError
from tests.packed_file import packed_file, with_one_qkv

GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
DOWN = "model.layers.0.mlp.experts.down_proj"


def opened(folder: Path) -> BoundModel:
    return open_model(folder, max_sequence_length=37)


def items_of(folder: Path) -> tuple[PackItem, ...]:
    return opened(folder).pack_items({})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    options = GptOssOptions(hidden_size=96, num_local_experts=3, vocab_size=331)
    write_gpt_oss(folder, options, shards=3)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> dict[str, NDArray[Any]]:
    return {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}


@pytest.fixture(scope="module")
def computed(folder: Path) -> dict[str, NDArray[Any]]:
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
@pytest.mark.parametrize("chunk", [96, 1000, piece.CHUNK])
def test_iree_reads_back_the_bytes(
    folder: Path,
    source: dict[str, NDArray[Any]],
    computed: dict[str, NDArray[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    monkeypatch.setattr(piece, "CHUNK", chunk)
    calls = []
    packed = packed_file(
        items_of(folder),
        tmp_path / "weights.irpa",
        progress=lambda *call: calls.append(call),
    )
    wanted = {
        name: gate_then_up(array) if ".gate_up_proj_" in name else array
        for name, array in with_one_qkv(source).items()
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


def test_archives_are_byte_for_byte_those_of_iree(tmp_path: Path) -> None:
    tensors = {"a": np.arange(100, dtype=np.uint8), "b.longer": np.arange(64, dtype=np.uint8)}
    index = rt.ParameterIndex()
    for key, array in tensors.items():
        note = {"dtype": "U8", "shape": list(array.shape), "layout": "identity"}
        index.add_buffer(key, array, metadata=json.dumps(note))
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    theirs = (tmp_path / "theirs.irpa").read_bytes()
    packed_file([PackItem(key=k, source=v) for k, v in tensors.items()], tmp_path / "ours.irpa")
    assert (tmp_path / "ours.irpa").read_bytes() == theirs
    entries = read_archive(tmp_path / "theirs.irpa")
    assert entries.keys() == tensors.keys()
    for key, entry in entries.items():
        assert theirs[entry.offset : entry.offset + entry.bytes] == tensors[key].tobytes()
    assert json.loads(entries["a"].metadata)["shape"] == [100]


def test_transformers_dequantizes_the_packed_rows_to_its_own_weights(
    folder: Path, tmp_path: Path
) -> None:
    packed_file(items_of(folder), tmp_path / "w.irpa")
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


def test_manifest_records_cover_the_archive(folder: Path) -> None:
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


def test_a_plan_of_some_tensors_still_hashes_whole_files(folder: Path, tmp_path: Path) -> None:
    items = items_of(folder)
    some = [items[20], items[3]]
    packed = packed_file(some, tmp_path / "w.irpa")
    assert set(with_iree(tmp_path / "w.irpa")) == {item.key for item in some}
    for name, record in packed.source.items():
        assert record.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_the_same_tensor_under_two_keys(folder: Path, tmp_path: Path) -> None:
    record = read_checkpoint(folder).tensors["model.embed_tokens.weight"]
    packed_file([PackItem(key=k, source=record) for k in ("in", "out")], tmp_path / "w.irpa")
    found = with_iree(tmp_path / "w.irpa")
    assert found["in"].tobytes() == found["out"].tobytes()


def test_two_tensors_under_one_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one key"):
        packed_file([PackItem(key="a", source=np.zeros(1))] * 2, tmp_path / "w.irpa")


@pytest.mark.parametrize(
    "arrays", [{}, {"empty": np.zeros((0, 4)), "x": np.ones(3, ml_dtypes.bfloat16)}]
)
def test_nothing_or_empty_tensors(tmp_path: Path, arrays: dict[str, Any]) -> None:
    packed_file([PackItem(key=k, source=v) for k, v in arrays.items()], tmp_path / "w.irpa")
    assert set(read_archive(tmp_path / "w.irpa")) == set(arrays)
    if arrays:
        assert with_iree(tmp_path / "w.irpa")["x"].tobytes() == arrays["x"].tobytes()


# ---- NaN scales ----


@pytest.fixture
def with_nan(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "nan")
    name = f"{GATE_UP}_scales"
    for file in (tmp_path / "nan").glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name][1, 5, 2] = tensors[name][1, 5, 0] = tensors[name][2, 127, 1] = 0xFF
            tensors[name][0, 0, 0] = 0xFE
            save_file(tensors, file)
    return tmp_path / "nan"


def test_nan_scales_are_refused_with_tensor_expert_and_row(with_nan: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=rf"safetensors: tensor {GATE_UP}_scales has 3 NaN scales.*expert 1 row 5 \(2\); "
        r"expert 2 row 127 \(1\);.*--allow-nan-scales",
    ):
        packed_file(items_of(with_nan), tmp_path / "w.irpa")
    assert list(tmp_path.iterdir()) == [with_nan]


@pytest.mark.parametrize("chunk", [16, piece.CHUNK])
def test_nan_scales_are_noted_where_allowed(
    with_nan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(piece, "CHUNK", chunk)
    packed = packed_file(items_of(with_nan), tmp_path / "w.irpa", allow_nan_scales=True)
    tensor = f"{GATE_UP}_scales"
    assert packed.nan_scales == (
        NanScale(tensor=tensor, expert=1, row=5, count=2),
        NanScale(tensor=tensor, expert=2, row=127, count=1),
    )


def test_the_row_of_a_matrix_is_that_of_no_expert(tmp_path: Path) -> None:
    scales = np.zeros((3, 4), np.uint8)
    scales[1, 2] = 0xFF
    items = [PackItem(key="a_scales", source=scales, scales=True)]
    with pytest.raises(
        CheckpointError, match=r"has 1 NaN scales \(byte 0xFF\): row 1 \(1\); every"
    ):
        packed_file(items, tmp_path / "w.irpa")
    packed = packed_file(items, tmp_path / "w.irpa", allow_nan_scales=True)
    (found,) = packed.nan_scales
    assert found == NanScale(tensor="a_scales", expert=None, row=1, count=1)
    assert _describe(found).startswith("a_scales: row 1 has 1 NaN scales; ")


# ---- failures leave nothing behind ----


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full_while_writing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write, calls = os.pwrite, []

    def full(handle: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        if sum(calls) > 100_000:
            raise OSError(code, os.strerror(code))
        return write(handle, data[:1000], offset)  # the system may write less than it is given

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ArtifactError, match=r"w.irpa: disk full; free some space"):
        packed_file(items_of(folder), tmp_path / "w.irpa")
    assert calls
    assert left(tmp_path) == []


def test_short_writes_are_continued(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:777], at))
    packed = packed_file(items_of(folder), tmp_path / "w.irpa")
    whole = (tmp_path / "w.irpa").read_bytes()
    assert packed.file.sha256 == hashlib.sha256(whole).hexdigest()


def test_disk_known_to_be_too_small(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ArtifactError, match=r"needs \d+ bytes, 1000 are free"):
        packed_file(items_of(folder), tmp_path / "w.irpa")
    assert left(tmp_path) == []


def test_interrupt(folder: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, name: str) -> None:
        assert left(tmp_path) != []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed_file(items_of(folder), tmp_path / "w.irpa", progress=interrupt)
    assert left(tmp_path) == []


def test_source_cut_meanwhile(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    plan = items_of(tmp_path / "cut")
    file = tmp_path / "cut" / "model-00002-of-00003.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    with pytest.raises(CheckpointError, match=rf"{file.name}: tensor .* cut while .* fetch"):
        packed_file(plan, tmp_path / "w.irpa")
    assert left(tmp_path) == ["cut"]


def test_folder_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so the system's answer is given by hand.
    def refuse(
        path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False
    ) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    plan = items_of(folder)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ArtifactError, match=r"w.irpa: cannot be written \(Permission denied\)"):
        packed_file(plan, tmp_path / "w.irpa")


def test_metadata_says_dtype_shape_and_layout(folder: Path, tmp_path: Path) -> None:
    packed_file(items_of(folder), tmp_path / "w.irpa")
    note = json.loads(read_archive(tmp_path / "w.irpa")[f"{GATE_UP}_blocks"].metadata)
    assert note == {"dtype": "U8", "shape": [3, 128, 3, 16], "layout": "gate-then-up"}


@pytest.mark.parametrize(
    ("own", "block", "wanted"),
    [((128, 128), 64, [1, 1, 2, 2]), ((128, 128), 128, [1, 2]), (None, 64, [1, 1, 1, 1])],
)
def test_scales_are_repeated_to_the_blocks_of_the_kernel(
    own: tuple[int, int] | None, block: int, wanted: list[int]
) -> None:
    """Scales of 128 columns each, or one for 256 columns; a row has what the kernel reads."""
    scales = np.array([[1, 2], [1, 2]] if own else [[1], [1]], np.float32)
    tensor: Any = SimpleNamespace(
        shape=(2, 256), rows=2, block=own, scales=None, scale_rows=None, factors=lambda *_: scales
    )
    found = FloatRowScales(tensor, block).reader(cast(Any, None))(0, 4 * 2 * len(wanted))
    np.testing.assert_array_equal(found.view(np.float32).reshape(2, -1), [wanted, wanted])


@pytest.mark.parametrize(("shape", "leads"), [((320, 256), 1), ((2, 256, 256), 2)])
def test_rows_share_scales_as_in_the_checkpoint(shape: tuple[int, ...], leads: int) -> None:
    """A matrix may end within a square; each of several has whole ones. Read in pieces."""
    few = -(-shape[-2] // 128)
    scales = np.arange(leads * few * 2, dtype=np.float32).reshape(-1, 2)
    rows = leads * shape[-2]
    wide = np.repeat(scales.reshape(leads, few, 2), 128, axis=1)[:, : shape[-2]].reshape(rows, 2)
    tensor: Any = SimpleNamespace(
        shape=shape, rows=rows, block=(128, 128), scales=None, scale_rows=None,
        factors=lambda first, count, _: wide[first : first + count],
    )  # fmt: skip
    source = FloatRowScales(tensor, 128, height=128)
    assert source.rows == leads * few
    read = source.reader(cast(Any, None))
    found = np.concatenate([read(at, 8) for at in range(0, 8 * source.rows, 8)])
    np.testing.assert_array_equal(found.view(np.float32).reshape(-1, 2), scales)
    np.testing.assert_array_equal(read(0, found.size), found)
