"""The canonical tensor: what it gives of a part, and how it is packed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.checkpoints.canonical.codecs import tiles
from mxc.compiler.checkpoints.canonical.tensor import TensorScale, blocked, plain
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.files.safetensors import read_file
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.models.binding import BoundParameter
from mxc.compiler.models.blocks.parameters import CheckpointRows, Parameter
from mxc.compiler.models.packed import pack_items
from mxc.errors import CheckpointError
from mxc.formats.formats import block_format
from mxc.formats.reference import Quantized, dequantize
from tests.packed_file import packed_file

RNG = np.random.default_rng(0)


@pytest.fixture
def records(tmp_path: Path) -> Callable[..., dict[str, TensorRecord]]:
    def write(**arrays: NDArray[Any]) -> dict[str, TensorRecord]:
        save_file(arrays, tmp_path / "model.safetensors")
        return read_file(tmp_path / "model.safetensors")[0]

    return write


def test_values_are_those_of_the_reference(records: Callable[..., dict[str, TensorRecord]]) -> None:
    elements = RNG.integers(0, 256, (3, 10, 48), np.uint8)
    scales = RNG.integers(100, 140, (3, 10, 3), np.uint8)
    found = records(w=elements, s=scales)
    weight = blocked("w", (3, 10, 96), block_format("mxfp4"), found["w"], found["s"])
    whole = dequantize(
        Quantized(elements, scales, block_format("mxfp4"), None, 2, (3, 10, 96))
    ).reshape(30, 96)
    assert np.array_equal(weight.values(), whole)
    assert np.array_equal(weight.values(11, 7), whole[11:18])
    pieces = [weight.decode(piece) for piece in weight.pieces(chunk=100)]
    assert [len(p) for p in pieces] == [2] * 15
    assert np.array_equal(np.concatenate(pieces), whole)
    assert (weight.block, weight.rows) == ((1, 32), 30)


def test_tiles_of_scales_become_rows_of_blocks(
    records: Callable[..., dict[str, TensorRecord]],
) -> None:
    """A scale of a tile of 4 x 64 is the scale of the two blocks of each of its four rows."""
    scales = RNG.integers(100, 140, (3, 2), np.uint8)
    found = records(w=RNG.integers(0, 120, (10, 96), np.uint8), s=scales)
    weight = blocked(
        "w", (10, 96), block_format("mxfp8e4m3"), found["w"], found["s"], scale_codec=tiles(4, 2)
    )
    wide = np.kron(scales, np.ones((4, 2), np.uint8))[:10, :3]
    assert np.array_equal(weight.scales.read(), wide)
    assert np.array_equal(weight.scales.read(3, 3), wide[3:6])


def test_rows_in_another_order(records: Callable[..., dict[str, TensorRecord]]) -> None:
    found = records(w=np.arange(12 * 4, dtype=np.float32).reshape(12, 4))
    weight = plain(found["w"])
    order = (0, 2, 1, 3)
    elements: Any = weight.elements
    mixed = dataclasses.replace(weight, elements=dataclasses.replace(elements, order=order))
    expected = weight.values().reshape(3, 4, 4)[:, list(order)].reshape(12, 4)
    assert np.array_equal(mixed.values(), expected)
    assert np.array_equal(mixed.values(5, 6), expected[5:11])


def test_one_tensor_scale_for_each_expert(records: Callable[..., dict[str, TensorRecord]]) -> None:
    elements = RNG.integers(0, 256, (2, 3, 8), np.uint8)
    found = records(
        w=elements,
        s=np.full((2, 3, 1), 0x38, np.uint8),
        g=np.array([2, 0.5], np.float32),
    )
    weight = blocked(
        "w",
        (2, 3, 16),
        block_format("nvfp4"),
        found["w"],
        found["s"],
        tensor_scale=TensorScale(record=found["g"]),
    )
    one = dataclasses.replace(weight, tensor_scale=None).values()
    assert np.array_equal(
        weight.values(), one * np.repeat(np.array([2, 0.5], np.float32), 3)[:, None]
    )
    assert np.array_equal(weight.values(2, 2), weight.values()[2:4])


def test_a_wrong_size_is_refused(records: Callable[..., dict[str, TensorRecord]]) -> None:
    found = records(w=np.zeros((4, 16), np.uint8), s=np.zeros((4, 2), np.uint8))
    with pytest.raises(CheckpointError, match=r"tensor s is U8 \[4, 2\], 8 bytes; wanted 4 for U8"):
        blocked("w", (4, 32), block_format("mxfp4"), found["w"], found["s"])
    with pytest.raises(CheckpointError, match="rows of 40 elements, wanted a multiple of the 32"):
        blocked("w", (4, 40), block_format("mxfp4"), found["w"], found["s"])


@pytest.mark.parametrize("layout", ["identity", "gate-then-up"])
def test_what_is_decoded_is_packed_like_what_is_stored(
    records: Callable[..., dict[str, TensorRecord]],
    tmp_path: Path,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever reads the archive cannot tell in which dialect the weights were."""
    monkeypatch.setattr("mxc.compiler.pieces.piece.CHUNK", 40)
    scales = RNG.integers(100, 140, (2, 1), np.uint8)
    found = records(
        w=RNG.integers(0, 120, (8, 64), np.uint8),
        s=scales,
        wide=np.repeat(np.repeat(scales, 4, 0), 2, 1),
    )
    format = block_format("mxfp8e4m3")
    coded = blocked("a", (8, 64), format, found["w"], found["s"], scale_codec=tiles(4, 2))
    direct = blocked("b", (8, 64), format, found["w"], found["wide"])
    rows = (CheckpointRows(tensor="w", dims=(("rows", 8), ("columns", 64))),)
    items: list[Any] = []
    for tensor in (coded, direct):
        parameter = Parameter(key=tensor.name, shape=(8, 64), rows=rows, layout=layout)
        bound = BoundParameter(
            parameter=parameter,
            tensors=(tensor,),
            format=tensor.format,
            blocks=tensor.block_format,
        )
        items += pack_items(bound, {})
    packed_file(items, tmp_path / "w.irpa")
    archive = read_archive(tmp_path / "w.irpa")
    data = (tmp_path / "w.irpa").read_bytes()
    entry = {k: data[e.offset : e.offset + e.bytes] for k, e in archive.items()}
    assert entry["a_scales"] == entry["b_scales"]
    assert entry["a_blocks"] == entry["b_blocks"]
    if layout == "identity":
        assert entry["a_scales"] == np.repeat(np.repeat(scales, 4, 0), 2, 1).tobytes()
    assert items[0].shape == (8, 2, 32)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match="a pickle"):
        open_checkpoint(path)
