"""Several targets in one artifact: what each level gets, what they share, and that each runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import mxc
from mxc.artifact.manifest import MANIFEST, MODULE, REPORT, WEIGHTS, Manifest
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler import levels
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.levels import archive_name, share
from mxc.compiler.report import Matmul, Report
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep, Progress
from mxc.errors import CompileError, TargetError

PROGRAM = """
func.func @main(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %0 = arith.mulf %a, %b : tensor<64xf32>
  return %0 : tensor<64xf32>
}
"""
FALLEN = Matmul(
    name="q", function="main", batch=1, m=1, n=64, k=64, lhs="f32", rhs="mxfp4", out="f32",
    kernel="main_0", lowering="fma", kernels=1, bytes_moved=1, bytes_minimum=1,
    fallback="one row only",
)  # fmt: skip
EXPERTS = "model.layers.0.mlp.experts.down_proj"
V4, V3, BOTH = "x86-64-v4", "x86-64-v3", ["cpu:x86-64-v4", "cpu:x86-64-v3"]


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1, max_position_embeddings=64))
    return folder


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """A compiler that wants the experts in panels with AVX-512 and as they are without."""
    asked: list[CompileRequest] = []

    def compile_program(
        request: CompileRequest, on_step: Callable[[CompileStep], None]
    ) -> Compiled:
        asked.append(request)
        on_step(CompileStep(kind="phase", name="flow", seconds=0.25))
        request.module.write_bytes(request.target.encode())
        best = request.target == BOTH[0]
        panels = {f"{EXPERTS}_{part}": f"panel16x{u}" for part, u in (("blocks", 4), ("scales", 1))}
        matmul = FALLEN if best else replace(FALLEN, name="k", fallback=None)
        return Compiled(
            functions={},
            report=Report(
                target=request.target, matmuls=(matmul,), kernels=(), functions=()
            ).to_dict(),
            chip=request.target.removeprefix("cpu:"),
            features=("sse4.2", "avx2", "avx512f") if best else ("sse4.2", "avx2"),
            panels=panels if best else {},
        )

    monkeypatch.setattr(levels, "compile_program", compile_program)
    return asked


def test_what_levels_read_alike_is_packed_once() -> None:
    array = np.zeros((16, 4), np.float32)

    def item(key: str, panels: str | None = None) -> PackItem:
        return PackItem(key=key, source=array, panels=panels)

    plans = {
        "a": [item("x"), item("y", "panel16x4"), item("z", "panel16x4")],
        "b": [item("x"), item("y", "panel16x4"), item("z")],
        "c": [item("x"), item("y"), item("z")],
    }
    shared = share(plans)
    keys = {levels: [each.key for each in items] for levels, items in shared.items()}
    assert keys == {
        ("a", "b", "c"): ["x"],
        ("a", "b"): ["y"],
        ("a",): ["z"],
        ("b", "c"): ["z"],
        ("c",): ["y"],
    }
    for level, plan in plans.items():
        found = [each for readers, items in shared.items() if level in readers for each in items]
        assert sorted((i.key, i.full_layout) for i in found) == [
            (i.key, i.full_layout) for i in plan
        ]
    names = [archive_name(readers, ("a", "b", "c")) for readers in shared]
    assert names == [WEIGHTS, "weights-a+b.irpa", "weights-a.irpa", "weights-b+c.irpa",
                     "weights-c.irpa"]  # fmt: skip


def test_an_artifact_of_two_levels(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    steps: list[CompileStep] = []
    made = mxc.compile(
        checkpoint,
        BOTH,
        tmp_path / "a.mxc",
        dump_ir=tmp_path / "ir",
        progress=Progress(steps.append),
    )
    assert [request.target for request in stub] == BOTH
    assert [request.dump_dir for request in stub] == [tmp_path / "ir" / V4, tmp_path / "ir" / V3]
    assert all(request.dump_dir is not None and request.dump_dir.is_dir() for request in stub)
    assert stub[0].program == stub[1].program
    names = [step.name for step in steps if step.seconds is not None]
    assert names == [
        "reading", "building", f"flow, {V4}", f"flow, {V3}", "packing",
    ]  # fmt: skip

    manifest = Manifest.from_json((made.path / MANIFEST).read_text(), "")
    assert manifest == made.manifest
    assert manifest.options["target"] == BOTH
    assert (manifest.target.name, manifest.target.device) == (", ".join(BOTH), "local-task")
    assert manifest.target.features == ("sse4.2", "avx2")
    assert list(manifest.levels) == [V4, V3]
    for name, level in manifest.levels.items():
        assert (made.path / level.module).read_text() == f"cpu:{name}"
        assert level.module == f"{name}/{MODULE}"
        assert level.target.chip == name
        assert level.archives == (WEIGHTS, f"weights-{name}.irpa")
    assert "avx512f" in manifest.levels[V4].target.features
    assert manifest.levels[V4].layouts == {}
    assert manifest.levels[V3].layouts == {EXPERTS: ("identity", "identity")}
    assert manifest.at(V4).weights[EXPERTS].layout == "panel16x4"
    assert manifest.at(V3).weights[EXPERTS].layout == "identity"
    present = {
        file.relative_to(made.path).as_posix() for file in made.path.rglob("*") if file.is_file()
    }
    assert set(manifest.files) == present - {MANIFEST}

    keys = {name: set(read_archive(made.path / name)) for name in manifest.levels[V4].archives}
    own = {f"{EXPERTS}_blocks", f"{EXPERTS}_scales"}
    assert keys[f"weights-{V4}.irpa"] == own == set(read_archive(made.path / f"weights-{V3}.irpa"))
    assert len(keys[WEIGHTS]) > 10
    assert not keys[WEIGHTS] & own

    raw = json.loads((made.path / REPORT).read_text())
    assert [each["matmuls"][0]["name"] for each in raw["levels"].values()] == ["q", "k"]
    assert [each["steps"][0]["name"] for each in raw["levels"].values()] == ["flow", "flow"]
    assert [(each["name"], each["levels"]) for each in raw["archives"]] == [
        (WEIGHTS, [V4, V3]), (f"weights-{V4}.irpa", [V4]), (f"weights-{V3}.irpa", [V3]),
    ]  # fmt: skip
    for each in raw["archives"]:
        assert each["bytes"] == (made.path / each["name"]).stat().st_size


def test_equal_layouts_are_one_archive(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    two = mxc.compile(checkpoint, ["cpu:x86-64-v3", "cpu:haswell"], tmp_path / "two.mxc")
    one = mxc.compile(checkpoint, "cpu:x86-64-v3", tmp_path / "one.mxc")
    assert [level.archives for level in two.manifest.levels.values()] == [(WEIGHTS,), (WEIGHTS,)]
    assert two.manifest.files[WEIGHTS] == one.manifest.files[WEIGHTS]
    assert two.manifest.weights == one.manifest.weights


def test_one_target_in_a_list_is_one_target(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    made = mxc.compile(checkpoint, ["cpu:x86-64-v3"], tmp_path / "a.mxc", weights="none")
    assert made.manifest.levels == {}
    assert made.manifest.options["target"] == "cpu:x86-64-v3"
    assert (made.path / MODULE).is_file()
    assert "matmuls" in json.loads((made.path / REPORT).read_text())


def test_strict_asks_every_level(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    reversed_ = list(reversed(BOTH))
    with pytest.raises(CompileError, match="fell back on cpu:x86-64-v4"):
        mxc.compile(checkpoint, reversed_, tmp_path / "a.mxc", strict=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "no target was given"),
        (["cpu", "cpu"], "target 'cpu' is given twice"),
        (["cpu:x86-64-v3", "gfx950"], "gfx950 is a GPU; compile it by itself"),
        (["cpu:x86-64-v3", "cpu:x86-64-v9"], "unknown target 'cpu:x86-64-v9'"),
    ],
)
def test_wrong_combinations(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest], targets: list[str], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        mxc.compile(checkpoint, targets, tmp_path / "a.mxc")
    assert stub == []


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that was really compiled, for every x86-64 CPU and for those with AVX2."""
    folder = tmp_path_factory.mktemp("fat")
    (folder / "p.mlir").write_text(PROGRAM)
    made = command(
        "compile", folder / "p.mlir", "--target", "cpu:x86-64", "--target", "cpu:x86-64-v3",
        "--output", folder / "fat.mxc",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    assert "level x86-64\n" in made.stdout
    assert "level x86-64-v3\n" in made.stdout
    return folder / "fat.mxc"


def test_every_level_runs_and_the_best_by_itself(fat: Path) -> None:
    a, b = np.arange(64, dtype=np.float32), np.full(64, 0.5, np.float32)
    for level, taken in ((None, V3), ("x86-64", "x86-64"), (V3, V3)):
        model = mxc.load(fat, level=level)
        assert model.level == taken
        assert model.manifest.target.name == f"cpu:{taken}"
        np.testing.assert_array_equal(model.call("main", a, b)[0], a * b)
    kernels = {
        level: report["kernels"][0]["instructions"]
        for level, report in json.loads((fat / REPORT).read_text())["levels"].items()
    }
    assert any("ymm" in name for name in kernels[V3])
    assert not any("ymm" in name for name in kernels["x86-64"])


def test_the_command_line_knows_levels(fat: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full(64, 2, np.float32))
    words = ("run", fat, "--input", tmp_path / "a.npy", "--input", tmp_path / "a.npy")
    assert "4." in command(*words, "--level", "x86-64").stdout
    refused = command(*words, "--level", "v3")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no level 'v3'; it has: x86-64, x86-64-v3" in refused.stderr

    shown = command("report", fat).stdout
    assert "level x86-64\n" in shown
    whole = json.loads(command("report", fat, "--json").stdout)
    assert list(whole["levels"]) == ["x86-64", V3]
    one = json.loads(command("report", fat, "--level", V3, "--json").stdout)
    assert one == whole["levels"][V3]
    assert "no level" in command("report", fat, "--level", "v3").stderr
    assert command("report", fat, "--verify", "--strict").exit_code == 0


def test_inspect_says_which_level_runs_here(fat: Path) -> None:
    found = json.loads(command("inspect", fat, "--json").stdout)
    assert found["levels_here"] == {"x86-64": "may run here", V3: "runs here"}
    shown = command("inspect", fat).stdout
    assert f"level {V3}" in shown
    assert "runs here" in shown
    refused = command("inspect", fat, "--level", "v3")
    assert "no level 'v3'; it has" in refused.stderr


def test_inspect_shows_the_layout_of_a_level(
    checkpoint: Path, tmp_path: Path, stub: list[CompileRequest]
) -> None:
    made = mxc.compile(checkpoint, BOTH, tmp_path / "a.mxc")
    for level, layout in ((V4, "panel16x4"), (V3, "identity")):
        words = ("inspect", made.path, "--level", level, "--json")
        rows = {row["name"]: row for row in json.loads(command(*words).stdout)["tensors"]}
        (name,) = (name for name in rows if name.startswith(EXPERTS) and "bias" not in name)
        assert rows[name]["layout"] == layout
        assert "lm_head.weight" in rows
