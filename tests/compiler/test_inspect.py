"""What inspect says, against counts made another way with torch and ml_dtypes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.artifact.manifest import FileRecord, Manifest, TargetRecord
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli.inspect import command
from mxc.compiler.inspect.contents import inspect
from mxc.compiler.models.model import open_model
from mxc.compiler.packing.items import PackItem
from mxc.errors import ArtifactError, CheckpointError
from mxc.formats.reference import dequantize, quantize
from tests.packed_file import packed_file

STEM = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=11, num_local_experts=2), shards=1)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{STEM}_scales"][0, 3, :2] = 0xFF
    tensors[f"{STEM}_scales"][1, 0, 0] = 0
    tensors["model.norm.weight"][:3] = [np.nan, np.inf, -7]
    save_file(tensors, file)
    return folder


def test_a_checkpoint_is_listed_with_pairs_as_one(folder: Path) -> None:
    found = inspect(folder)
    stored = load_file(folder / "model.safetensors")
    assert found["kind"] == "checkpoint"
    assert found["bytes"] == sum(array.nbytes for array in stored.values())
    rows = {row["name"]: row for row in found["tensors"]}
    wanted = {name for name in stored if not name.endswith(("_blocks", "_scales"))}
    wanted |= {n.removesuffix("_blocks") for n in stored if n.endswith("_blocks")}
    assert set(rows) == wanted
    assert rows[STEM] == {
        "name": STEM, "format": "mxfp4", "dtype": "U8", "shape": [2, 128, 64],
        "bytes": 2 * 128 * 2 * 17, "layout": "identity", "file": "model.safetensors",
        # Blocks of random codes, which no recipe gives.
        "recipe": "unstated", "recipe_source": "unstated",
    }  # fmt: skip
    assert rows["model.norm.weight"]["format"] == "bf16"
    layers = [n.split(".")[2] for n in rows if n.endswith("sinks")]
    assert layers == [str(i) for i in range(11)]
    assert found["dialect"] == "gpt-oss"
    assert inspect(folder / "model.safetensors")["tensors"] == found["tensors"]


def test_an_mxfp4_tensor(folder: Path) -> None:
    row = inspect(folder, STEM)["tensor"]
    stored = load_file(folder / "model.safetensors")
    blocks, scales = stored[f"{STEM}_blocks"], stored[f"{STEM}_scales"]
    theirs = convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    assert row["first"] == theirs.transpose(1, 2).flatten()[:32].tolist()
    codes = np.stack([blocks & 15, blocks >> 4], -1).view(ml_dtypes.float4_e2m1fn)
    numbers = codes.astype(np.float32)
    assert row["elements"] == numbers.size
    assert row["saturated"] == int((abs(numbers) == 6).sum())
    assert row["zero"] == int((numbers == 0).sum())
    assert (row["scales"], row["nan_scales"]) == (scales.size, 2)
    powers = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    exponents, counts = np.unique(np.log2(powers[~np.isnan(powers)]), return_counts=True)
    assert row["scale_exponents"] == {
        str(int(e)): int(c) for e, c in zip(exponents, counts, strict=True)
    }
    assert row["scale_exponents"]["-127"] == 1


def test_a_dense_tensor(folder: Path) -> None:
    row = inspect(folder, "model.norm.weight")["tensor"]
    stored = load_file(folder / "model.safetensors")["model.norm.weight"].astype(np.float64)
    assert row["first"][:3] == ["nan", "inf", -7.0]
    assert row["first"][3:] == stored[3:32].tolist()
    assert (row["nan"], row["infinite"]) == (1, 1)
    assert (row["min"], row["max"]) == (-7.0, stored[3:].max())


def test_parts_have_their_own_names(folder: Path) -> None:
    row = inspect(folder, f"{STEM}_scales")["tensor"]
    assert (row["format"], row["shape"], row["max"]) == ("u8", [2, 128, 2], 255.0)


@pytest.mark.parametrize(
    "array", [np.array(3.5, np.float32), np.zeros((0, 5), np.int32), np.arange(2 << 20)]
)
def test_odd_sizes(tmp_path: Path, array: NDArray[Any]) -> None:
    save_file({"x": array}, tmp_path / "a.safetensors")
    row = inspect(tmp_path / "a.safetensors", "x")["tensor"]
    assert row["elements"] == array.size
    assert row["first"] == array.reshape(-1)[:32].tolist()
    assert row["max"] == (array.max() if array.size else None)


def test_an_archive(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.irpa"
    packed_file(open_model(folder).pack_items({}), path, allow_nan_scales=True)
    rows = {row["name"]: row for row in inspect(path)["tensors"]}
    # Tables that the compiler computes, which no checkpoint has.
    assert [rows.pop(f"rope.{name}")["format"] for name in ("cos", "sin")] == ["f32", "f32"]
    wanted = {r["name"]: (r["shape"], r["format"]) for r in inspect(folder)["tensors"]}
    for name in [name for name in wanted if ".q_proj." in name]:
        # Queries, keys and values are one tensor, below one another.
        parts = [wanted.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        (first, *columns), format = parts[0]
        height = first + sum(shape[0] for shape, _ in parts[1:])
        wanted[name.replace("q_proj", "qkv_proj")] = ([height, *columns], format)
    assert {n: (r["shape"], r["format"]) for n, r in rows.items()} == wanted
    assert rows[STEM]["layout"] == "gate-then-up"
    # Reordering rows changes no count.
    ours, theirs = (inspect(p, STEM)["tensor"] for p in (path, folder))
    for key in ("scale_exponents", "nan_scales", "saturated", "zero"):
        assert ours[key] == theirs[key]


@pytest.mark.parametrize(
    ("format", "dtype"), [("mxfp8e4m3", ml_dtypes.float8_e4m3fn), ("mxint8", np.int8)]
)
def test_an_archive_with_quantized_weights(
    folder: Path, tmp_path: Path, format: str, dtype: type[Any]
) -> None:
    """Blocks and scales of the format that packing wrote are one weight of that format."""
    model = open_model(folder, quantize_dense=format.removesuffix("e4m3"), recipe="floor")
    name = "model.layers.0.self_attn.o_proj.weight"
    packed_file(model.pack_items({}), tmp_path / "w.irpa", allow_nan_scales=True)
    source = load_file(folder / "model.safetensors")[name].astype(np.float32)
    row = inspect(tmp_path / "w.irpa", name)["tensor"]
    q = quantize(source, format, recipe="floor")
    assert (row["format"], row["shape"]) == (format, list(source.shape))
    assert row["first"] == dequantize(q).reshape(-1)[:32].tolist()
    codes = q.elements.view(dtype).astype(np.float32)
    assert row["zero"] == int((codes == 0).sum())
    assert row["saturated"] == int((abs(codes) == {"mxint8": 127}.get(format, 448)).sum()) > 0


def test_an_archive_of_another_tool(tmp_path: Path) -> None:
    import iree.runtime as rt

    index = rt.ParameterIndex()
    index.add_buffer("a", np.arange(70, dtype=np.uint8))
    index.add_buffer("b", np.arange(3, dtype=np.uint8), metadata='{"shape": [9]}')
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    rows = inspect(tmp_path / "theirs.irpa")["tensors"]
    assert [(r["name"], r["shape"], r["dtype"]) for r in rows] == [
        ("a", [70], "U8"),
        ("b", [3], "U8"),
    ]
    assert inspect(tmp_path / "theirs.irpa", "a")["tensor"]["max"] == 69


@pytest.fixture
def artifact(folder: Path, tmp_path: Path) -> tuple[Path, Manifest]:
    out = tmp_path / "out.mxc"
    out.mkdir()
    model = open_model(folder)
    packed = packed_file(model.pack_items({}), out / "weights.irpa", allow_nan_scales=True)
    manifest = Manifest(
        mxc_version="0.1.0",
        iree_version="3.13.0",
        target=TargetRecord(name="cpu", device="local-task", architecture="x86_64", chip="znver4"),
        activations="f32",
        functions={},
        files={"weights.irpa": packed.file},
        source={"model.safetensors": FileRecord(bytes=1, sha256="00")},
        weights=model.weights({}),
        notes=("three NaN scales",),
    )
    (out / "manifest.json").write_text(manifest.to_json())
    return out, manifest


def test_an_artifact(artifact: tuple[Path, Manifest]) -> None:
    out, manifest = artifact
    found = inspect(out)
    assert found["kind"] == "artifact"
    assert found["manifest"]["target"]["chip"] == "znver4"
    assert {row["name"] for row in found["tensors"]} == set(manifest.weights)
    assert inspect(out, STEM)["tensor"]["layout"] == "gate-then-up"


def test_an_artifact_without_weights(artifact: tuple[Path, Manifest]) -> None:
    out, manifest = artifact
    (out / "weights.irpa").unlink()
    bare = dataclasses.replace(manifest, weights_present=False, files={})
    (out / "manifest.json").write_text(bare.to_json())
    assert inspect(out)["tensors"] == []
    (out / "manifest.json").write_text(manifest.to_json())
    with pytest.raises(ArtifactError, match=r"weights.irpa: cannot be read \(No such file"):
        inspect(out)


def test_unknown_tensor(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor model.norm among.*model.norm.weight"):
        inspect(folder, "model.norm")


@pytest.mark.parametrize(
    ("name", "found"), [("gone.bin", "nothing there"), ("there.bin", "another kind of file")]
)
def test_not_something_to_inspect(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "there.bin").touch()
    refusal = rf"{name}: wanted a checkpoint folder .*irpa file; found {found}"
    with pytest.raises(CheckpointError, match=refusal):
        inspect(tmp_path / name)


def test_printed(
    folder: Path, artifact: tuple[Path, Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder)
    listed = capsys.readouterr().out
    assert "model.layers.10.mlp.experts.down_proj" in listed
    assert "2x128x64" in listed
    command(folder, STEM)
    shown = capsys.readouterr().out
    assert "2^-127" in shown
    assert "nan scales" in shown
    command(artifact[0])
    assert "cpu (znver4, local-task)" in (printed := capsys.readouterr().out)
    assert "three NaN scales" in printed
    assert "gate-then-up" in printed
    for tensor in (None, STEM, "model.norm.weight"):
        command(folder, tensor, json=True)

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        assert json.loads(capsys.readouterr().out, parse_constant=refuse) == inspect(folder, tensor)


def test_large_tensors_take_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    big = PackItem(key="big", source=np.zeros((64 << 20) // 4, np.float32))
    packed_file([big], tmp_path / "w.irpa")
    tracemalloc.start()
    row = inspect(tmp_path / "w.irpa", "big")["tensor"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert row["elements"] == 16 << 20
    assert peak < 48 << 20
