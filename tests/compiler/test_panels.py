"""The panel layout, against indexing; and how it goes into the archive."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import open_model
from mxc.compiler.packing.items import PackingFindings, PackItem, archive_bytes
from mxc.compiler.packing.nan_scales import NanScale
from mxc.compiler.packing.panels import UNITS, panel_bytes, to_panels
from mxc.compiler.pieces import piece
from mxc.errors import CheckpointError
from mxc.formats.panels import PANEL
from tests.packed_file import packed_file, with_one_qkv

Bytes = NDArray[np.uint8]


def by_index(data: Bytes, unit: int) -> Bytes:
    """data [experts, rows, row] in panels, byte by byte: what the layout says."""
    experts, rows, row = data.shape
    panels = -(-rows // PANEL)
    out = np.zeros((experts, panels, row // unit, PANEL, unit), np.uint8)
    for e, n, byte in np.ndindex(*data.shape):
        out[e, n // PANEL, byte // unit, n % PANEL, byte % unit] = data[e, n, byte]
    return out.reshape(-1)


def bytes_of(*shape: int) -> Bytes:
    return np.random.default_rng(list(shape)).integers(0, 256, shape, dtype=np.uint8)


@given(
    experts=st.integers(1, 3),
    rows=st.integers(1, 50),
    units=st.integers(1, 5),
    layout=st.sampled_from(["panel16x1", "panel16x4", "panel16x16"]),
    at=st.sets(st.integers(0, 12), max_size=5),
)
@example(experts=3, rows=16, units=1, layout="panel16x1", at=set())
@example(experts=2, rows=17, units=3, layout="panel16x4", at={1, 2, 3})
@example(experts=3, rows=1, units=2, layout="panel16x1", at={0, 1})
def test_any_panels(experts: int, rows: int, units: int, layout: str, at: set[int]) -> None:
    """Panels of all experts, made in ranges that begin `at` some of them."""
    unit = UNITS[layout]
    data = bytes_of(experts, rows, units * unit)
    item = PackItem(key="a", source=data, panels=layout, experts=True)
    count, size = item.units
    places = [0, *sorted(place for place in at if 0 < place < count), count]
    found = [
        archive_bytes(item, item.reader(), start, stop - start, PackingFindings())
        for start, stop in pairwise(places)
    ]
    assert [piece.size for piece in found] == [size * (b - a) for a, b in pairwise(places)]
    whole = np.concatenate(found)
    assert whole.size == panel_bytes(experts, rows, units * unit) == item.bytes
    np.testing.assert_array_equal(whole, by_index(data, unit))
    np.testing.assert_array_equal(whole, to_panels(data.reshape(-1), rows, units * unit, layout))


def test_planes_of_six_bits() -> None:
    """Element k = 8j + 4w + t of a row: its nibble and its high bits, where the layout says."""
    codes = np.random.default_rng(0).integers(0, 64, (16, 2, 32), dtype=np.uint8)
    bits = np.unpackbits(codes[..., None], axis=-1, count=6, bitorder="little")
    packed = np.packbits(bits.reshape(16, -1), axis=-1, bitorder="little")
    panels = to_panels(packed.reshape(-1), 16, 48, "panel16x4of6")
    dwords = panels.view("<u4").reshape(2, 6, 16)
    for row, block, k in np.ndindex(16, 2, 32):
        j, byte, nibble = k // 8, k % 8 // 2, k % 2
        low = dwords[block, j, row] >> 4 * (k % 8) & 15
        high = dwords[block, 4 + j // 2, row] >> 8 * byte + 4 * (j % 2) + 2 * nibble & 3
        assert low | high << 4 == codes[row, block, k]


def test_a_unit_that_a_row_ends_in() -> None:
    with pytest.raises(ValueError, match="a row of 6 bytes has no whole number of 4-byte units"):
        to_panels(bytes_of(96), 16, 6, "panel16x4")


# ---- in the archive ----

GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
DOWN = "model.layers.0.mlp.experts.down_proj"
HEAD = "lm_head.weight"
PANELS = {
    f"{GATE_UP}_blocks": "panel16x4",
    f"{GATE_UP}_scales": "panel16x1",
    f"{DOWN}_blocks": "panel16x4",
    f"{DOWN}_scales": "panel16x1",
    HEAD: "panel16x4",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of experts are whole panels, whatever the model; those of the head are not: 331."""
    folder = tmp_path_factory.mktemp("source")
    options = GptOssOptions(
        hidden_size=96, intermediate_size=64, num_local_experts=3, vocab_size=331
    )
    write_gpt_oss(folder, options, tokenizer=False)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> dict[str, NDArray[Any]]:
    return with_one_qkv(
        {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}
    )


def with_iree(path: Path) -> dict[str, Bytes]:
    index = rt.ParameterIndex()
    index.load(str(path))
    return {
        key: np.array(rt.parameter_index_entry_as_numpy_flat_ndarray(entry)).view(np.uint8)
        for key, entry in index.items()
    }


def in_archive(name: str, array: np.ndarray) -> Bytes:
    """The bytes that a tensor of the checkpoint should have there."""
    if ".gate_up_proj_" in name:
        array = np.concatenate([array[:, 0::2], array[:, 1::2]], axis=1)
    if name not in PANELS:
        return np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    experts, rows = (1, array.shape[0]) if array.ndim == 2 else array.shape[:2]
    flat = np.ascontiguousarray(array).view(np.uint8).reshape(experts, rows, -1)
    return by_index(flat, UNITS[PANELS[name]])


# 1000 bytes: less than a panel, no multiple of a row. The head has 331 rows of 192 bytes.
@pytest.mark.parametrize("chunk", [1000, piece.CHUNK])
def test_iree_reads_panels(
    folder: Path,
    source: dict[str, NDArray[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    monkeypatch.setattr(piece, "CHUNK", chunk)
    plan = open_model(folder, max_sequence_length=16).pack_items(PANELS)
    done = []
    packed = packed_file(
        plan, tmp_path / "w.irpa", progress=lambda now, total, _: done.append((now, total))
    )
    found = with_iree(tmp_path / "w.irpa")
    entries = read_archive(tmp_path / "w.irpa")
    computed: dict[str, Any] = {
        item.key: item.source for item in plan if item.key.startswith("rope.")
    }
    assert set(found) == set(source) | set(computed) == set(entries)
    for item in plan:
        wanted = in_archive(item.key, (source | computed)[item.key])
        np.testing.assert_array_equal(found[item.key], wanted, err_msg=item.key)
        assert item.bytes == wanted.size == packed.entries[item.key][1]
    assert done[-1] == (sum(item.bytes for item in plan),) * 2
    notes = {key: json.loads(entry.metadata) for key, entry in entries.items()}
    assert notes[f"{GATE_UP}_blocks"]["layout"] == "gate-then-up, panel16x4"
    assert notes[f"{GATE_UP}_blocks"]["shape"] == list(source[f"{GATE_UP}_blocks"].shape)
    assert notes[f"{DOWN}_scales"]["layout"] == "panel16x1"
    assert notes[HEAD]["layout"] == "panel16x4"
    assert notes["model.norm.weight"]["layout"] == "identity"


def test_the_manifest_names_the_panels(folder: Path) -> None:
    records = open_model(folder, max_sequence_length=16).weights(PANELS)
    assert records[GATE_UP].layout == "gate-then-up, panel16x4"
    assert records[GATE_UP].shape == (3, 128, 96)
    assert (records[DOWN].layout, records[HEAD].layout) == ("panel16x4", "panel16x4")
    assert records["model.embed_tokens.weight"].layout == "identity"
    assert records[GATE_UP].scale_layout == f"gate-then-up, {PANELS[f'{GATE_UP}_scales']}"
    assert (records[DOWN].scale_layout, records[HEAD].scale_layout) == ("panel16x1", None)


@pytest.mark.parametrize("chunk", [16, piece.CHUNK])
def test_a_nan_scale_keeps_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Expert and row are the checkpoint's, wherever the panels put the byte."""
    monkeypatch.setattr(piece, "CHUNK", chunk)
    copy = tmp_path / "nan"
    shutil.copytree(folder, copy)
    for file in copy.glob("*.safetensors"):
        tensors = load_file(file)
        for name, at in ((GATE_UP, (2, 37, 1)), (DOWN, (0, 95, 0))):
            if f"{name}_scales" in tensors:
                tensors[f"{name}_scales"][at] = 0xFF
        save_file(tensors, file)
    plan = open_model(copy, max_sequence_length=16).pack_items(PANELS)
    with pytest.raises(CheckpointError, match=r"expert \d row \d+ \(1\)"):
        packed_file(plan, tmp_path / "w.irpa")
    packed = packed_file(plan, tmp_path / "w.irpa", allow_nan_scales=True)
    assert set(packed.nan_scales) == {
        NanScale(tensor=f"{GATE_UP}_scales", expert=2, row=37, count=1),
        NanScale(tensor=f"{DOWN}_scales", expert=0, row=95, count=1),
    }


def test_an_array_of_the_compiler(tmp_path: Path) -> None:
    array = np.arange(20 * 6, dtype=np.float32).reshape(20, 6)
    packed_file([PackItem(key="a", source=array, panels="panel16x4")], tmp_path / "w.irpa")
    found = with_iree(tmp_path / "w.irpa")["a"].view(np.float32).reshape(2, 6, 16)
    for panel in range(2):
        np.testing.assert_array_equal(found[panel, :, :4], array[panel * 16 : panel * 16 + 4].T)
    assert not found[1, :, 4:].any()
