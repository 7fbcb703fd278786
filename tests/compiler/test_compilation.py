"""Compilation: what it takes, what it writes down, and what it leaves when it cannot end.

But for the last tests the compiler itself is stood in for by one that writes an empty module.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxc
from mxc.artifact.manifest import MANIFEST, REPORT, TOKENIZER, WEIGHTS, Manifest
from mxc.compiler import compilation, levels
from mxc.compiler.checkpoints.files.safetensors import read_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.report import Matmul, Report
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep, Progress
from mxc.errors import ArtifactError, CheckpointError, CompileError, TargetError
from mxc.formats.formats import block_format

FALLEN = Matmul(
    name="q", function="main", batch=1, m=1, n=64, k=64, lhs="f32", rhs="mxfp4", out="f32",
    kernel="main_0", lowering="v_fma", kernels=1, bytes_moved=1, bytes_minimum=1,
    fallback="one row only",
)  # fmt: skip


@pytest.fixture(scope="module")
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-1.5"
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1, max_position_embeddings=64))
    return folder


@pytest.fixture
def checkpoint(_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy: a test may alter it."""
    return Path(shutil.copytree(_checkpoint, tmp_path / "in" / _checkpoint.name))


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the artifact, and the current one."""
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """Stand in for the compiler; what it was asked."""
    asked: list[CompileRequest] = []

    def compile_program(
        request: CompileRequest, on_step: Callable[[CompileStep], None]
    ) -> Compiled:
        asked.append(request)
        on_step(CompileStep(kind="phase", name="flow"))
        request.module.write_bytes(b"module")
        on_step(CompileStep(kind="phase", name="flow", seconds=0.25))
        report = Report(target="cpu", matmuls=(FALLEN,), kernels=(), functions=()).to_dict()
        return Compiled(functions={}, report=report, chip="znver4", features=("avx2",))

    monkeypatch.setattr(levels, "compile_program", compile_program)
    return asked


def test_manifest_and_report_say_what_was_chosen(
    checkpoint: Path, out: Path, stub: list[CompileRequest]
) -> None:
    artifact = mxc.compile(
        checkpoint, "cpu", out / "a.mxc", max_sequence_length=16, activations="f32"
    )
    assert artifact.path == out / "a.mxc"
    text = (artifact.path / MANIFEST).read_text()
    manifest = Manifest.from_json(text, "")
    assert manifest == artifact.manifest
    assert manifest.options == {
        "target": "cpu",
        "max_sequence_length": 16,
        "activations": "f32",
        "floats": "f32",
        "observe_inputs": False,
        "quantize_dense": None,
        "recipe": None,
        "declared_recipe": None,
        "kv_cache": "f32",
        "devices": 1,
        "weights": "packed",
        "strict": False,
        "allow_nan_scales": False,
    }
    assert (manifest.target.name, manifest.target.chip) == ("cpu", "znver4")
    assert manifest.target.features == ("avx2",)
    assert manifest.notes == ()
    # Every file of this checkpoint is used, and hashlib says the same of it.
    assert set(manifest.source) == {file.name for file in checkpoint.iterdir()}
    for name, record in manifest.source.items():
        data = (checkpoint / name).read_bytes()
        assert (record.bytes, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    files = {file.name for file in artifact.path.iterdir()}
    assert set(manifest.files) == files - {MANIFEST}
    assert {TOKENIZER, WEIGHTS, REPORT} < files
    for name, record in manifest.files.items():
        assert record.sha256 == hashlib.sha256((artifact.path / name).read_bytes()).hexdigest()
    steps = json.loads((artifact.path / REPORT).read_text())["steps"]
    assert [step["name"] for step in steps] == ["reading", "building", "flow", "packing"]
    assert steps[2] == {"kind": "phase", "name": "flow", "seconds": 0.25}
    assert "seconds" not in text
    (request,) = stub
    assert request.parameters
    assert [path.name for path in out.iterdir()] == ["a.mxc"]


def test_progress_is_told(checkpoint: Path, out: Path, stub: list[CompileRequest]) -> None:
    steps: list[CompileStep] = []
    packed: list[tuple[int, int, str]] = []
    mxc.compile(
        checkpoint, progress=Progress(steps.append, lambda *now: packed.append(now)), strict=False
    )
    names = [(step.name, step.seconds is None) for step in steps]
    road_of = ["reading", "building", "flow", "packing"]
    assert names == [(name, begins) for name in road_of for begins in (True, False)]
    assert packed[-1][0] == packed[-1][1] > 0
    assert [now[0] for now in packed] == sorted(now[0] for now in packed)


def test_the_default_output_is_the_whole_name_here(
    checkpoint: Path, out: Path, stub: list[CompileRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mxc.compile(checkpoint).path == out / "tiny-1.5.mxc"
    program = checkpoint.parent / "p.mlir"
    program.write_text("func.func @f() { return }")
    assert mxc.compile(program).path == out / "p.mxc"
    monkeypatch.chdir(checkpoint)
    assert mxc.compile(".").path.name == "tiny-1.5.mxc"


def test_a_program_is_recorded_by_what_was_compiled(
    out: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    program = tmp_path / "p.mlir"
    program.write_text("func.func @f() { return }")
    manifest = mxc.compile(program).manifest
    (request,) = stub
    assert (request.program, request.place) == (program.read_bytes(), str(program))
    assert not request.parameters
    assert manifest.source["p.mlir"].sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    assert manifest.options == {"target": "cpu", "strict": False}
    assert (manifest.model, manifest.weights_present) == (None, True)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gfx9500", r"unknown target 'gfx9500' \(did you mean 'gfx950'\?\); known targets: cpu,"),
        ("cpu:zenver4", r"unknown target 'cpu:zenver4' \(did you mean 'cpu:znver4'\?\)"),
        ("cpu:generic-rv64", "unknown target 'cpu:generic-rv64'"),
        ("", "unknown target ''"),
    ],
)
def test_unknown_targets(checkpoint: Path, out: Path, target: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        mxc.compile(checkpoint, target)
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "gone: does not exist; give a checkpoint folder"),
        ("m.gguf", r"m\.gguf: truncated: wanted 4 bytes for the magic"),
        (
            "m.tflite",
            r"m\.tflite: of no known kind; give a checkpoint folder.*\.mlir, \.stablehlo",
        ),
        ("m.safetensors", r"m\.safetensors: one file of a checkpoint; give the folder"),
        ("config.json", "one file of a checkpoint; give the folder"),
    ],
)
def test_inputs_of_other_kinds(out: Path, tmp_path: Path, name: str, said: str) -> None:
    if name != "gone":
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=said):
        mxc.compile(tmp_path / name)
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_sequence_length": 0}, "--max-sequence-length 0: .* is 64; give 1 to 64"),
        ({"max_sequence_length": 65}, "--max-sequence-length 65: .* is 64; give 1 to 64"),
        ({"activations": "i4"}, "--activations i4: not supported; .* f32, bf16, i8, mxfp4"),
        ({"weights": "some"}, "--weights some: not known; give packed or none"),
    ],
)
def test_options_that_the_model_cannot_have(
    checkpoint: Path, out: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((CheckpointError, ArtifactError), match=said):
        mxc.compile(checkpoint, **options)
    assert not list(out.iterdir())


@pytest.mark.parametrize("option", [{"max_sequence_length": 8}, {"activations": "f32"}])
def test_options_of_models_are_refused_for_programs(
    out: Path, tmp_path: Path, option: dict[str, Any]
) -> None:
    (tmp_path / "p.mlir").write_text("func.func @f() { return }")
    name = next(iter(option)).replace("_", "-")
    said = rf"--{name} has no meaning for a program \(.*p\.mlir\); leave it out"
    with pytest.raises(CheckpointError, match=said):
        mxc.compile(tmp_path / "p.mlir", **option)


def test_strict_refuses_a_fallback_and_leaves_nothing(
    checkpoint: Path, out: Path, stub: list[CompileRequest]
) -> None:
    with pytest.raises(CompileError, match=r"1 of 1 contractions fell back .*\n *one row only"):
        mxc.compile(checkpoint, strict=True)
    assert not list(out.iterdir())


def test_without_a_listing(checkpoint: Path, out: Path, stub: list[CompileRequest]) -> None:
    """Not where something reads it."""
    plain = mxc.compile(checkpoint, output=out / "plain", listing=False)
    page = mxc.compile(checkpoint, output=out / "page", listing=False, html=out / "page.html")
    with pytest.raises(CompileError, match="fell back"):
        mxc.compile(checkpoint, output=out / "strict", listing=False, strict=True)
    assert [request.listed for request in stub] == [False, True, True]
    (note,) = set(plain.manifest.notes) - set(page.manifest.notes)
    assert note.startswith("compiled without a listing")


def test_without_weights(checkpoint: Path, out: Path, stub: list[CompileRequest]) -> None:
    artifact = mxc.compile(checkpoint, weights="none")
    assert not (artifact.path / WEIGHTS).exists()
    assert not artifact.manifest.weights_present
    assert artifact.manifest.weights, "how they are meant is still said"
    assert "compiled without weights: it can be inspected, not run" in artifact.manifest.notes
    assert not any(name.endswith(".safetensors") for name in artifact.manifest.source)
    with pytest.raises(ArtifactError, match=r"compiled with --weights none: .*; compile it again"):
        mxc.load(artifact.path)


def test_without_a_tokenizer(checkpoint: Path, out: Path, stub: list[CompileRequest]) -> None:
    (checkpoint / TOKENIZER).unlink()
    artifact = mxc.compile(checkpoint)
    assert not (artifact.path / TOKENIZER).exists()
    (note,) = (note for note in artifact.manifest.notes if TOKENIZER in note)
    assert note.endswith("a prompt can only be given as tokens (mxc generate --prompt-tokens)")


def test_nan_scales(checkpoint: Path, out: Path, stub: list[CompileRequest]) -> None:
    tensors = read_checkpoint(checkpoint).tensors
    name = "model.layers.0.mlp.experts.down_proj_scales"
    record = tensors[name]
    with record.file.open("r+b") as file:
        file.seek(record.offset + record.shape[1] * record.shape[2])  # expert 1, row 0
        file.write(b"\xff")
    with pytest.raises(CheckpointError, match=rf"{name} has 1 NaN .*expert 1 row 0 .*--allow-nan"):
        mxc.compile(checkpoint)
    assert not list(out.iterdir())
    notes = mxc.compile(checkpoint, allow_nan_scales=True).manifest.notes
    assert any(f"{name}: expert 1, row 0 has 1 NaN scales" in note for note in notes)


def test_a_dump_folder_that_cannot_be_made(
    checkpoint: Path, out: Path, stub: list[CompileRequest]
) -> None:
    (checkpoint / "file").touch()
    with pytest.raises(ArtifactError, match=r"--dump-ir .*file/d: cannot be made .*; give another"):
        mxc.compile(checkpoint, dump_ir=checkpoint / "file" / "d")
    assert not list(out.iterdir())


@pytest.mark.parametrize("name", [REPORT, MANIFEST])
def test_a_full_disk_while_writing(
    checkpoint: Path,
    out: Path,
    stub: list[CompileRequest],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    inner: Callable[..., Compiled] = vars(levels)["compile_program"]

    def and_fill(request: CompileRequest, on_step: Callable[[CompileStep], None]) -> Compiled:
        (request.module.parent / name).symlink_to("/dev/full")
        return inner(request, on_step)

    monkeypatch.setattr(levels, "compile_program", and_fill)
    said = r"no space left on the device; free some or choose another --output"
    if name == MANIFEST:
        # It stands among the files when they are recorded, and nobody can read all of /dev/full.
        monkeypatch.setattr(compilation, "record", lambda file: compilation._of_bytes(b""))
    with pytest.raises(ArtifactError, match=said):
        mxc.compile(checkpoint)
    assert not list(out.iterdir())


def test_a_full_disk_while_packing(
    checkpoint: Path, out: Path, stub: list[CompileRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(handle: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mxc.compiler.pieces.piece.os.pwrite", write)
    with pytest.raises(ArtifactError, match=r"weights.irpa: disk full; free some space"):
        mxc.compile(checkpoint)
    monkeypatch.undo()
    assert not list(out.iterdir())


@pytest.mark.parametrize("when", ["reading", "flow", "packing"])
def test_an_interrupt_leaves_nothing(
    checkpoint: Path, out: Path, stub: list[CompileRequest], when: str
) -> None:
    def interrupt(step: CompileStep) -> None:
        if step.name == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mxc.compile(checkpoint, progress=Progress(step=interrupt))
    assert not list(out.iterdir())


#: Formats that the CPU can load, with one ragged N and the K of gpt-oss (90 blocks of 32).
CASES = [
    (format, both, n, k)
    for format in ("mxfp4", "mxfp8e4m3", "mxfp8e5m2", "nvfp4")
    for both in (False, True)
    for n, k in [(97, 96), *([(16, 2880)] if format == "mxfp4" else [])]
]


def test_contractions_of_any_number_of_rows(linear: Callable[..., str], out: Path) -> None:
    """One program, a function a case, called with any number of rows; numpy in float64 decides.

    Five rows are a tile and a row of the next width: the row is once in the sums.
    """
    names = [f"{format}_{'both' if both else 'one'}_{n}_{k}" for format, both, n, k in CASES]
    (out / "p.mlir").write_text(
        "\n".join(
            linear(name, format, lhs=format if both else None, n=n, k=k)
            for name, (format, both, n, k) in zip(names, CASES, strict=True)
        )
    )
    model = mxc.load(mxc.compile(out / "p.mlir", listing=False).path)
    assert list(model.functions) == names
    rng = np.random.default_rng(0)
    for name, (format, both, n, k) in zip(names, CASES, strict=True):
        w, packed_w = operand(rng, n, k, format)
        for m in (1, 5, 6, 16, 33):
            x, packed_x = operand(rng, m, k, format)
            arguments = packed_x if both else (x.astype(np.float32),)
            (y,) = model.call(name, *arguments, *packed_w)
            assert y.shape == (m, n)
            # k products and k additions in float32, in any order (Higham 2002, 3.5).
            bound = (k + 1) * 2.0**-24 * (np.abs(x) @ np.abs(w).T)
            assert np.all(np.abs(y - x @ w.T) <= bound), f"{name}, {m} rows"


def operand(
    rng: np.random.Generator, rows: int, k: int, format: str
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Rows in float64, and their packed elements [rows, blocks, bytes] and scales."""
    q = mxc.quantize(rng.standard_normal((rows, k)).astype(np.float32), format)
    whole = mxc.dequantize(q).astype(np.float64)
    if q.tensor_scale is not None:
        whole /= np.float64(q.tensor_scale)  # a factor of the whole tensor, not of the program
        whole = np.round(whole * 2**20) / 2**20  # e2m1 times e4m3 has fewer digits than that
    return whole, (q.elements.reshape(rows, k // block_format(format).block, -1), q.scales)
