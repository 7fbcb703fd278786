"""GGUF as models have it: names, rows, experts, shards; and what a damaged file may claim."""

import math
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.gguf_names import ARCHITECTURES, parameter, tensor
from mxc.compiler.checkpoints.files.gguf import read_gguf
from mxc.compiler.models.binding import BoundParameter
from mxc.compiler.models.blocks.parameters import CheckpointRows, Parameter
from mxc.compiler.models.packed import pack_items
from mxc.errors import CheckpointError
from tests.packed_file import packed_file

RNG = np.random.default_rng(0)
GGML = gguf.GGMLQuantizationType
LIBRARY = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def write(
    path: Path, architecture: str, tensors: dict[str, tuple[NDArray[Any], Any]], **values: int
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        writer.add_uint32(key.replace("__", "."), value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_are_those_of_the_library(architecture: str) -> None:
    """Each of our names is mapped by gguf's own table to the GGUF name that we read it from."""
    names = ARCHITECTURES[architecture]
    table = gguf.get_tensor_name_map(LIBRARY[architecture], 4)
    known = {*gguf.MODEL_TENSORS[LIBRARY[architecture]]}
    spelled = {gguf.TENSOR_NAMES[t].removeprefix("blk.{bid}.") for t in known}
    for ggml, ours in {**names.layers, **names.experts}.items():
        if architecture in ("qwen2moe", "qwen3moe") and ggml in ("ffn_gate", "ffn_up", "ffn_down"):
            # Layers without experts, which llama.cpp refuses and a note of convert speaks of.
            assert parameter(f"blk.3.{ggml}.weight", names) == f"model.layers.3.{ours}.weight"
            continue
        assert ggml in spelled
        if "experts" in ours:
            # gguf maps names once the experts are in one tensor, and gpt-oss' gate and up apart.
            stacked = f"model.layers.3.{ours.replace('.{}', '')}"
            if "block_sparse_moe" not in ours:  # whose names the converter writes out itself
                assert table.get_name(stacked) == f"blk.3.{ggml}"
            continue
        if ours == "self_attn.sinks":
            assert parameter("blk.3.attn_sinks.weight", names) == f"model.layers.3.{ours}"
            continue
        name = f"model.layers.3.{ours}.weight"
        assert table.get_name(name, (".weight",)) == f"blk.3.{ggml}.weight"
        assert parameter(f"blk.3.{ggml}.weight", names) == name
        assert tensor(name, names) == f"blk.3.{ggml}.weight"
    for ggml, ours in (("token_embd", "model.embed_tokens"), ("output", "lm_head")):
        if ggml == "output" and ggml not in spelled:
            assert architecture in ("cohere2", "gemma2")  # whose head is the embedding
            continue
        assert table.get_name(f"{ours}.weight", (".weight",)) == f"{ggml}.weight"
        assert parameter(f"{ggml}.weight", names) == f"{ours}.weight"


@pytest.mark.parametrize("kind", [GGML.MXFP4, GGML.F32])
def test_rotary_pairs_of_llama_become_halves(tmp_path: Path, kind: Any) -> None:
    """Against the permutation that llama.cpp's converter applies to queries and keys."""
    heads, width = 4, 64
    x = RNG.standard_normal((heads * 16, width)).astype(np.float32)
    theirs = x.reshape(heads, 2, 8, width).swapaxes(1, 2).reshape(x.shape)
    bias = np.arange(heads * 16, dtype=np.float32)
    permuted = bias.reshape(heads, 2, 8).swapaxes(1, 2).reshape(-1)
    write(
        tmp_path / "a.gguf",
        "llama",
        {
            "blk.0.attn_q.weight": (gguf.quants.quantize(theirs, kind), kind),
            "blk.0.attn_q.bias": (permuted, GGML.F32),
            "blk.0.attn_v.weight": (gguf.quants.quantize(theirs, kind), kind),
        },
        llama__attention__head_count=heads,
        llama__attention__head_count_kv=heads,
    )
    source = open_checkpoint(tmp_path / "a.gguf")
    attention = "model.layers.0.self_attn"
    expected = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)
    found = source.tensor(f"{attention}.q_proj.weight")
    assert np.array_equal(found.values(), expected)
    assert np.array_equal(found.values(21, 3), expected[21:24])
    assert np.array_equal(source.tensor(f"{attention}.q_proj.bias").values()[0], bias)
    kept = source.tensor(f"{attention}.v_proj.weight").values()
    assert np.array_equal(kept, gguf.quants.dequantize(gguf.quants.quantize(theirs, kind), kind))


def test_experts_become_one_tensor_each(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 8, 64)).astype(np.float32)
    raw = gguf.quants.quantize(x, GGML.MXFP4)
    write(tmp_path / "a.gguf", "qwen3moe", {"blk.1.ffn_down_exps.weight": (raw, GGML.MXFP4)})
    source = open_checkpoint(tmp_path / "a.gguf")
    expected = gguf.quants.dequantize(raw, GGML.MXFP4)
    for expert in range(3):
        name = f"model.layers.1.mlp.experts.{expert}.down_proj.weight"
        assert np.array_equal(source.tensor(name).values(), expected[expert])


@pytest.fixture
def gpt_oss(tmp_path: Path) -> tuple[Path, NDArray[Any], NDArray[Any]]:
    gate, up = RNG.standard_normal((2, 2, 40, 64)).astype(np.float32)
    raw = [gguf.quants.quantize(part, GGML.MXFP4) for part in (gate, up)]
    biases = RNG.standard_normal((2, 2, 40)).astype(np.float32)
    tensors = {
        "blk.0.ffn_gate_exps.weight": (raw[0], GGML.MXFP4),
        "blk.0.ffn_up_exps.weight": (raw[1], GGML.MXFP4),
        "blk.0.ffn_gate_exps.bias": (biases[0], GGML.F32),
        "blk.0.ffn_up_exps.bias": (biases[1], GGML.F32),
        "blk.0.attn_sinks.weight": (np.ones(4, np.float32), GGML.F32),
    }
    write(tmp_path / "a.gguf", "gpt-oss", tensors)
    values = [gguf.quants.dequantize(part, GGML.MXFP4) for part in raw]
    interleaved = np.stack(values, axis=2).reshape(2, 80, 64)
    return tmp_path / "a.gguf", interleaved, np.stack([*biases], axis=2).reshape(2, 80)


def test_gate_and_up_of_gpt_oss_are_woven(gpt_oss: tuple[Path, NDArray[Any], NDArray[Any]]) -> None:
    path, interleaved, bias = gpt_oss
    source = open_checkpoint(path)
    experts = "model.layers.0.mlp.experts"
    assert set(source.tensors) == {
        f"{experts}.gate_up_proj",
        f"{experts}.gate_up_proj_bias",
        "model.layers.0.self_attn.sinks",
    }
    found = source.tensor(f"{experts}.gate_up_proj")
    assert (found.shape, found.format) == ((2, 80, 64), "mxfp4")
    flat = interleaved.reshape(160, 64)
    assert np.array_equal(found.values(), flat)
    for start, count in ((0, 1), (1, 1), (3, 7), (79, 2), (158, 2), (5, 0)):
        assert np.array_equal(found.values(start, count), flat[start : start + count])
    assert np.array_equal(source.tensor(f"{experts}.gate_up_proj_bias").values(), bias)


def test_what_is_woven_is_packed(
    gpt_oss: tuple[Path, NDArray[Any], NDArray[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gate and up are taken apart again for the archive, whatever the size of the pieces."""
    monkeypatch.setattr("mxc.compiler.pieces.piece.CHUNK", 300)
    path, _, _ = gpt_oss
    found = open_checkpoint(path).tensor("model.layers.0.mlp.experts.gate_up_proj")
    parameter = Parameter(
        key="w",
        shape=found.shape,
        rows=(CheckpointRows(tensor=found.name, dims=tuple(("size", n) for n in found.shape)),),
        experts=True,
        layout="gate-then-up",
    )
    bound = BoundParameter(
        parameter=parameter,
        tensors=(found,),
        format=found.format,
        blocks=found.block_format,
    )
    packed = packed_file(pack_items(bound, {}), tmp_path / "w.irpa")
    entry = read_archive(tmp_path / "w.irpa")["w_blocks"]
    data = (tmp_path / "w.irpa").read_bytes()[entry.offset : entry.offset + entry.bytes]
    rows = found.elements.read().reshape(2, 40, 2, -1)
    assert data == np.ascontiguousarray(rows.swapaxes(1, 2)).tobytes()
    assert list(packed.source) == ["a.gguf"]


def test_shards(tmp_path: Path) -> None:
    for number in range(2):
        write(
            tmp_path / f"m-{number + 1:05}-of-00002.gguf",
            "qwen3",
            {f"blk.{number}.ffn_up.weight": (np.ones((4, 4), np.float32), GGML.F32)},
            split__no=number,
            split__count=2,
        )
    source = open_checkpoint(tmp_path / "m-00001-of-00002.gguf")
    files = {tensor.elements.record.file for tensor in source.tensors.values()}
    assert len(files) == len(source.tensors) == 2
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf: not found"):
        open_checkpoint(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00001-of-00002.gguf").rename(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"split\.count says 2 files; wanted a name"):
        open_checkpoint(tmp_path / "b.gguf")


# ---- damaged ----


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def header(tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def info(
    name: bytes = b"t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0
) -> bytes:
    dims = b"".join(struct.pack("<Q", n) for n in shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def array(kind: int, count: int) -> bytes:
    return header(0, 1) + text(b"k") + struct.pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated: wanted 4 bytes for the magic"),
        (b"PK\3\4" + bytes(40), "not a GGUF file"),
        (header(version=1), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
        (header(values=1 << 60), r"claims 1152921504606846976 values, which take at least"),
        (header(tensors=1 << 60), "claims 1152921504606846976 tensors"),
        (header(0, 1) + struct.pack("<Q", 1 << 62) + bytes(16), "a key claims"),
        (header(0, 1) + text(b"k") + struct.pack("<I", 99), "truncated|of type 99"),
        (array(0, 1 << 63), "claims 9223372036854775808 numbers of 'k'"),
        (array(8, 1 << 63), "claims 9223372036854775808 strings of 'k'"),
        (array(9, 1), "an array of type 9"),
        (header(0, 2) + (text(b"k") + struct.pack("<IB", 0, 1)) * 2, "'k' is there twice"),
        (header(2) + info() + info(offset=32) + bytes(64), "'t' is there twice"),
        (header(1) + info(shape=(1,) * 5), "5 dimensions, wanted at most 4"),
        (header(1) + info(kind=12) + bytes(64), "of type Q4_K, which is not supported"),
        (header(1) + info(kind=777) + bytes(64), "of type 777"),
        (header(1) + info(shape=(1 << 40, 1 << 40)), r"fewer than 2\^63"),
        (header(1) + info(shape=(31,), kind=39), "wanted rows of a multiple of 32"),
        (header(1) + info(shape=(1 << 40,)), "truncated: tensor 't' ends at byte"),
        (header(1) + info(offset=1 << 63) + bytes(64), "leaves a hole"),
        (header(1) + info(offset=7) + bytes(64), "leaves a hole"),
        (header(2) + info(b"a", (16,)) + info(b"b", (16,), 0, 32) + bytes(200), "overlaps"),
        (header(1) + info() + bytes(900), "the header accounts for"),
        (
            header(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 24),
            "a power of two for general.alignment, found 24",
        ),
    ],
)
def test_damaged(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(CheckpointError, match=rf"bad\.gguf: .*({message})"):
        read_gguf(path)
    seconds = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("architecture", "name", "shape"),
    [
        ("llama", b"blk.0.attn_q.weight", ()),
        ("llama", b"blk.0.attn_q.weight", (0, 1 << 62)),
        ("qwen3moe", b"blk.0.ffn_up_exps.weight", (0, 4, 1 << 40)),
        ("gpt-oss", b"blk.0.ffn_gate_exps.weight", (4, 4)),
    ],
)
def test_shapes_that_no_layer_has(
    tmp_path: Path, architecture: str, name: bytes, shape: tuple[int, ...]
) -> None:
    key = text(b"general.architecture") + struct.pack("<I", 8) + text(architecture.encode())
    data = header(1, 1) + key + info(name, shape)
    data += bytes(-len(data) % 32 + 4 * math.prod(shape))
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"a\.gguf: tensor blk.*, wanted .* damaged"):
        open_checkpoint(tmp_path / "a.gguf")


def test_a_scale_that_is_none(tmp_path: Path) -> None:
    raw = np.full((1, 36), 0x7F, np.uint8)
    write(tmp_path / "a.gguf", "qwen3", {"x.weight": (raw, GGML.NVFP4)})
    tensor = open_checkpoint(tmp_path / "a.gguf").tensor("x.weight")
    with pytest.raises(CheckpointError, match=r"tensor x\.weight, .* 0x7f, which is no scale"):
        tensor.values()
