"""Dense weights that are quantized while they are packed, against the reference on whole tensors.

In the last tests the compiler is stood in for by one that writes an empty module.
"""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler import levels
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.binding import DenseQuantization
from mxc.compiler.models.model import BoundModel, open_model
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.packing.quantized import QuantizedPart, QuantizedRows
from mxc.compiler.pieces import piece
from mxc.compiler.report import Report
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep
from mxc.errors import CheckpointError
from mxc.formats.formats import block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize
from tests.packed_file import packed_file, with_one_qkv

#: A tensor of the checkpoint, and the weight of the program that it is the first part of.
Q = "model.layers.0.self_attn.q_proj.weight"
QKV = Q.replace("q_proj", "qkv_proj")
ROUTER = "model.layers.0.mlp.router.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

FP8 = DenseQuantization(format=block_format("mxfp8e4m3"), recipe=ScaleRecipe.RCEIL)
INT8 = DenseQuantization(format=block_format("mxint8"), recipe=ScaleRecipe.FLOOR)


def checkpoint(folder: Path, **options: Any) -> Path:
    chosen: dict[str, Any] = {
        "hidden_size": 96,
        "num_hidden_layers": 1,
        "num_local_experts": 2,
        "vocab_size": 331,
    }
    write_gpt_oss(folder, GptOssOptions(**{**chosen, **options}), shards=2)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("source"))


def opened(folder: Path, dense: DenseQuantization) -> BoundModel:
    format = dense.format.name.removesuffix("e4m3")
    return open_model(
        folder, max_sequence_length=16, quantize_dense=format, recipe=str(dense.recipe)
    )


def floats(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The plain tensors of a checkpoint, as float32; queries, keys and values are one."""
    tensors = {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}
    return with_one_qkv(
        {k: v.astype(np.float32) for k, v in tensors.items() if v.dtype != np.uint8}
    )


def archive(path: Path) -> dict[str, npt.NDArray[np.uint8]]:
    index = rt.ParameterIndex()
    index.load(str(path))
    return {
        key: np.array(rt.parameter_index_entry_as_numpy_flat_ndarray(entry)).view(np.uint8)
        for key, entry in index.items()
    }


@pytest.mark.parametrize("dense", [FP8, INT8], ids=["mxfp8", "mxint8"])
@pytest.mark.parametrize("chunk", [1000, piece.CHUNK])
def test_bytes_are_the_reference(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dense: DenseQuantization,
    chunk: int,
) -> None:
    monkeypatch.setattr(piece, "CHUNK", chunk)
    model = opened(folder, dense)
    packed = packed_file(model.pack_items({}), tmp_path / "w.irpa")
    found, source = archive(tmp_path / "w.irpa"), floats(folder)
    weights = {each.key for each in model.bound if each.dense}
    assert weights == {HEAD, QKV, Q.replace("q_", "o_")}
    for key in weights:
        q = quantize(source[key], dense.format, recipe=dense.recipe)
        assert found[f"{key}_blocks"].tobytes() == q.elements.tobytes()
        assert found[f"{key}_scales"].tobytes() == q.scales.tobytes()
        assert key not in found
        wide = source[key].astype(np.float64)
        noise = np.square(dequantize(q).astype(np.float64) - wide).sum()
        loss = packed.losses[f"{key}_blocks"]
        assert loss.elements == wide.size
        assert loss.sqnr == pytest.approx(10 * np.log10(np.square(wide).sum() / noise), abs=0.006)
    assert len(packed.losses) == len(weights)
    # What is no factor of a product, and the router.
    for name in (EMBEDDING, ROUTER, "model.norm.weight", QKV.replace("weight", "bias")):
        kept = source[name].astype(ml_dtypes.bfloat16)
        assert found[name].tobytes() == kept.tobytes()


def test_in_panels(folder: Path, tmp_path: Path) -> None:
    panels = {f"{QKV}_blocks": "panel16x4", f"{QKV}_scales": "panel16x1"}
    packed_file(opened(folder, FP8).pack_items(panels), tmp_path / "w.irpa")
    found = archive(tmp_path / "w.irpa")
    q = quantize(floats(folder)[QKV], FP8.format, recipe=FP8.recipe)
    for suffix, rows in (("_blocks", q.elements), ("_scales", q.scales)):
        layout = panels[QKV + suffix]
        whole = to_panels(rows.reshape(-1), rows.shape[0], rows.shape[1], layout)
        assert found[QKV + suffix].tobytes() == whole.tobytes()


def test_a_tied_head_is_a_copy(tmp_path: Path) -> None:
    model = opened(checkpoint(tmp_path / "tied", tie_word_embeddings=True), INT8)
    packed_file(model.pack_items({}), tmp_path / "w.irpa")
    found, source = archive(tmp_path / "w.irpa"), floats(tmp_path / "tied")
    q = quantize(source[EMBEDDING], "mxint8", recipe="floor")
    assert found[f"{HEAD}_blocks"].tobytes() == q.elements.tobytes()
    assert found[EMBEDDING].tobytes() == source[EMBEDDING].astype(ml_dtypes.bfloat16).tobytes()
    assert model.weights({})[HEAD].source == EMBEDDING


def test_manifest_records(folder: Path, tmp_path: Path) -> None:
    model, panels = opened(folder, FP8), {f"{QKV}_scales": "panel16x1"}
    items = model.pack_items(panels)
    losses = packed_file(items, tmp_path / "w.irpa").losses
    records = model.weights(panels, losses)
    record = records[QKV]
    assert record.source == ", ".join(Q.replace("q_proj", f"{part}_proj") for part in "qkv")
    assert record.shape == (256, 96)
    assert (record.format, record.block, record.axis) == ("mxfp8e4m3", 32, 1)
    assert (record.recipe, record.nibble_order) == ("rceil", None)
    assert (record.layout, record.scale_layout) == ("identity", "panel16x1")
    assert record.sqnr == losses[f"{QKV}_blocks"].sqnr
    assert record.sqnr is not None
    assert 25 < record.sqnr < 40
    assert records[ROUTER].format == "bf16"
    assert records["model.layers.0.mlp.experts.down_proj"].recipe == "unstated"
    covered = {
        key
        for stem, record in records.items()
        for key in ([f"{stem}_blocks", f"{stem}_scales"] if record.block else [stem])
    }
    assert covered == {item.key for item in items}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_cannot_be_quantized(tmp_path: Path, value: float) -> None:
    source = checkpoint(tmp_path / "in")
    for file in source.glob("*.safetensors"):
        tensors = load_file(file)
        if Q in tensors:
            tensors[Q][100, 7] = value
            save_file(tensors, file)
    plan = opened(source, FP8).pack_items({})
    with pytest.raises(CheckpointError, match=rf"tensor {Q}: row 100, column 7 is {value}, one of"):
        packed_file(plan, tmp_path / "w.irpa")
    assert not (tmp_path / "w.irpa").exists()


def test_rows_that_are_no_whole_number_of_blocks(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in", num_attention_heads=6, head_dim=8)
    with pytest.raises(
        CheckpointError, match=r"o_proj\.weight is BF16 \[96, 48\]: mxfp8e4m3 wants"
    ):
        mxc.compile(source, "cpu", tmp_path / "out.mxc", quantize_dense="mxfp8")


def test_a_matrix_of_blocks_has_no_experts() -> None:
    """Rank 3, as the blocks of experts' scales have, says nothing: the item does."""
    blocks = np.zeros((20, 3, 32), np.uint8)
    assert PackItem(key="a", source=blocks).matrix == (1, 20, 96)
    assert PackItem(key="a", source=blocks, experts=True).matrix == (20, 3, 32)


def test_little_is_in_memory(tmp_path: Path) -> None:
    """64 MiB of bf16: a few chunks, whatever the size."""
    file = tmp_path / "w.bin"
    rows, depth = 1 << 13, 1 << 12
    file.write_bytes(bytes(rows * depth * 2))
    record = TensorRecord(
        name="w", dtype="BF16", shape=(rows, depth), file=file, offset=0, bytes=rows * depth * 2
    )
    plan = [
        PackItem(
            key=part.value,
            source=record,
            quantized=QuantizedRows(format=FP8.format, recipe=FP8.recipe, part=part),
            panels=panels,
        )
        for part, panels in (
            (QuantizedPart.ELEMENTS, "panel16x4"),
            (QuantizedPart.SCALES, "panel16x1"),
        )
    ]
    tracemalloc.start()
    packed_file(plan, tmp_path / "w.irpa")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_program(
        request: CompileRequest, on_step: Callable[[CompileStep], None]
    ) -> Compiled:
        request.module.write_bytes(b"module")
        report = Report(target="cpu", matmuls=(), kernels=(), functions=()).to_dict()
        return Compiled(functions={}, report=report, chip="znver4", features=())

    monkeypatch.setattr(levels, "compile_program", compile_program)


def test_an_artifact_says_what_was_quantized(folder: Path, tmp_path: Path, stub: None) -> None:
    artifacts = [
        mxc.compile(
            folder,
            "cpu",
            tmp_path / name,
            activations="mxfp4",
            quantize_dense="mxint8",
            recipe="even",
            max_sequence_length=16,
        )
        for name in ("a.mxc", "b.mxc")
    ]
    manifest = artifacts[0].manifest
    assert (manifest.activations, manifest.activation_recipe) == ("mxfp4", "even")
    chosen: dict[str, Any] = {
        key: manifest.options[key] for key in ("quantize_dense", "recipe", "floats")
    }
    assert chosen == {"quantize_dense": "mxint8", "recipe": "even", "floats": "bf16"}
    record = manifest.weights[QKV]
    assert (record.format, record.recipe) == ("mxint8", "even")
    report = json.loads((artifacts[0].path / REPORT).read_text())["quantized"]
    rows = {row["name"]: row for row in report}
    assert len(rows) == 3
    assert rows[QKV] == {
        "name": QKV, "to": "mxint8 with recipe even", "elements": 256 * 96, "sqnr": record.sqnr,
    }  # fmt: skip
    quantized, kept = (note for note in manifest.notes if "quantized to" in note)
    assert kept.startswith("3 dense weights were quantized to mxint8 with recipe even: signal")
    assert f"least {min(row['sqnr'] for row in report)} dB in" in kept
    assert "activations are quantized to mxfp4 with recipe even" in quantized
    # Two builds are the same bytes, but for how long the steps took.
    for file in sorted(artifacts[0].path.iterdir()):
        if file.name not in (REPORT, "manifest.json"):
            assert file.read_bytes() == (artifacts[1].path / file.name).read_bytes(), file.name
    assert manifest.weights == artifacts[1].manifest.weights
    assert manifest.notes == artifacts[1].manifest.notes


def test_options_without_meaning_for_a_program(tmp_path: Path) -> None:
    (tmp_path / "x.mlir").write_text("module {}")
    with pytest.raises(CheckpointError, match="--quantize-dense has no meaning for a program"):
        mxc.compile(tmp_path / "x.mlir", "cpu", tmp_path / "out.mxc", quantize_dense="mxfp8")
