"""mxc compile: its options, what it shows, and how it ends. Options of inspect, opt and demo."""

import json as json_text
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mxc
from mxc.compiler.checkpoints.files.safetensors import read_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.pieces.workers import Workers


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command was called with, by the name of its module."""
    seen: dict[str, Any] = {}
    for module in ("cli.compile", "cli.inspect", "cli.demo", "opt"):

        def command(*arguments: object, _module: str = module, **options: object) -> int:
            seen[_module] = (arguments, options)
            return 3

        monkeypatch.setattr(f"mxc.compiler.{module}.command", command)
    return seen


def test_compile(given: dict[str, Any]) -> None:
    words = "compile in.d --target gfx950 -o out.mxc --max-sequence-length 64"
    words += " --activations f32 --quantize-dense mxfp8 --recipe even --kv-cache mxint8"
    words += " --weights none --revision v2 --strict --allow-nan-scales --force --dump-ir d"
    words += " --emit asm --schedule s.json --tune --no-cache"
    assert CliRunner().invoke(app, [*words.split(), "--json", "--wide"]).exit_code == 0
    assert given["cli.compile"] == (
        (Path("in.d"),),
        {
            "target": ["gfx950"],
            "output": Path("out.mxc"),
            "max_sequence_length": 64,
            "activations": "f32",
            "quantize_dense": "mxfp8",
            "recipe": "even",
            "kv_cache": "mxint8",
            "devices": 1,
            "weights": "none",
            "revision": "v2",
            **dict.fromkeys(("strict", "allow_nan_scales", "force", "tune", "json", "wide"), True),
            "dump_ir": Path("d"),
            "html": None,
            "schedule": Path("s.json"),
            "emit": "asm",
            "phase_timeout": None,
            "cache": False,
            "workers": Workers(),
        },
    )


def test_compile_wants_an_output_and_is_for_the_cpu(given: dict[str, Any]) -> None:
    for words in (["--target", "cpu"], ["--output", "o"], ["--target", "cpu", "-o", "o"]):
        result = CliRunner().invoke(app, ["compile", "in.d", *words])
        assert result.exit_code == (0 if "o" in words else 2)
    assert given["cli.compile"][1]["target"] == ["cpu"]
    emit = CliRunner().invoke(app, ["compile", "in.d", "--emit", "asm"])
    assert emit.exit_code == 0
    defaults = {"activations": None, "quantize_dense": None, "weights": "packed", "cache": True}
    assert given["cli.compile"][1].items() >= defaults.items()


def test_inspect_opt_and_demo(given: dict[str, Any]) -> None:
    runner = CliRunner()
    # Its status says whether two checkpoints differ, as diff's does.
    assert runner.invoke(app, ["inspect", "m.gguf", "a.b", "--json"]).exit_code == 3
    assert given["cli.inspect"] == (
        (Path("m.gguf"), "a.b", None, None),
        {"json": True, "wide": False},
    )
    words = "opt x.mlir --passes a{b=1},c --output y.mlir --split-input-file --verify-diagnostics"
    assert runner.invoke(app, words.split()).exit_code == 3
    assert given["opt"][0] == (Path("x.mlir"),)
    assert given["opt"][1] == {
        "passes": "a{b=1},c",
        "target": None,
        "to": None,
        "output": Path("y.mlir"),
        "split_input_file": True,
        "verify_diagnostics": True,
        "dump_ir": None,
        "phase_timeout": None,
        "print_kernels": False,
    }
    assert runner.invoke(app, ["demo", "--directory", "d"]).exit_code == 0
    assert given["cli.demo"] == ((Path("d"),), {"wide": False})


#: Enough kernels that LLVM is busy for seconds.
BUSY = "\n".join(
    f"""func.func @f{n}(%a: tensor<{n}x40xf32>, %b: tensor<40x{n}xf32>) -> tensor<{n}x{n}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{n}x{n}xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  %r = linalg.matmul ins(%a, %b : tensor<{n}x40xf32>, tensor<40x{n}xf32>)
    outs(%i : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32> }}"""
    for n in range(50, 90)
)

#: One row of f32 times mxfp4: no scaled matrix instruction takes it.
WEIGHT_ONLY = """func.func @main(
    %x: tensor<1x2x32xf32>, %b: tensor<64x2x16xi8>, %t: tensor<64x2xi8>) -> tensor<1x64xf32> {
  %w = flow.tensor.bitcast %b : tensor<64x2x16xi8> -> tensor<64x2x32xf4E2M1FN>
  %s = flow.tensor.bitcast %t : tensor<64x2xi8> -> tensor<64x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x64xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<1x64xf32>) -> tensor<1x64xf32>
  %r = linalg.generic {
      indexing_maps = [
        affine_map<(m, n, a, b) -> (m, a, b)>, affine_map<(m, n, a, b) -> (n, a, b)>,
        affine_map<(m, n, a, b) -> (n, a)>, affine_map<(m, n, a, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<1x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>)
      outs(%i : tensor<1x64xf32>) {
  ^bb0(%l: f32, %q: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %q, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %u = arith.addf %o, %p : f32
    linalg.yield %u : f32
  } -> tensor<1x64xf32>
  return %r : tensor<1x64xf32> }

func.func @scale(%x: tensor<f32>, %y: f32, %n: i32) -> (tensor<f32>, f32, i32) {
  %a = tensor.extract %x[] : tensor<f32>
  %b = arith.mulf %a, %y : f32
  %c = tensor.from_elements %b : tensor<f32>
  %m = arith.addi %n, %n : i32
  return %c, %y, %m : tensor<f32>, f32, i32
}
"""

#: The command line, with a compiler that is done at once.
FAST_COMPILER = """
import sys, time
from mxc.compiler import levels
from mxc.compiler.cli import main
from mxc.compiler.report import Report
from mxc.compiler.steps import Compiled
def compile_program(request, on_step):
    request.module.write_bytes(b"module")
    report = Report(target="cpu", matmuls=(), kernels=(), functions=()).to_dict()
    return Compiled(functions={}, report=report, chip="c", features=())
levels.compile_program = compile_program
BEFORE
main()
"""

#: And with a disk that takes its time, and says when it writes; threads write, each line at once.
SLOW_DISK = FAST_COMPILER.replace(
    "BEFORE",
    """
import os; from mxc.compiler.pieces.piece import PieceOutput; put = PieceOutput.put
def slowly(self, name, offset, data):
    os.write(1, f"writes {name}\\n".encode())
    time.sleep(0.05)
    put(self, name, offset, data)
PieceOutput.put = slowly
""",
)
FAST_COMPILER = FAST_COMPILER.replace("BEFORE", "")


@dataclass
class Place:
    """Where a command runs: the folder of the artifact, and that of temporary files."""

    out: Path
    temporary: Path

    @property
    def artifact(self) -> Path:
        return self.out / "a.mxc"

    def start(self, *words: object, program: str | None = None) -> "subprocess.Popen[str]":
        code = ["-m", "mxc"] if program is None else ["-c", program]
        return subprocess.Popen(
            [sys.executable, *code, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )

    def run(self, *words: object) -> tuple[int, str, str]:
        process = self.start(*words)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    def left(self) -> list[Path]:
        return [*self.out.iterdir(), *self.temporary.iterdir()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("out", "temporary"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "out", tmp_path / "temporary")


def write(folder: Path, text: str) -> Path:
    file = folder / "p.mlir"
    file.write_text(text)
    return file


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


@pytest.mark.parametrize(("number", "status", "said"), ENDS)
def test_an_end_during_a_phase_of_iree_leaves_nothing(
    place: Place, tmp_path: Path, number: signal.Signals, status: int, said: str
) -> None:
    words = ("compile", write(tmp_path, BUSY), "--target", "cpu", "--output", place.artifact)
    process = place.start(*words)
    assert process.stderr is not None
    for line in process.stderr:
        if "executable-configurations" in line:
            break
    workers = descendants(process.pid)
    assert workers
    assert place.left()
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (status, "")
    assert errors.strip() == said, "one line, and no step after it"
    assert not place.left()
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


@pytest.mark.parametrize(("number", "status", "said"), ENDS)
def test_an_end_while_packing_leaves_nothing(
    place: Place, tmp_path: Path, number: signal.Signals, status: int, said: str
) -> None:
    write_gpt_oss(tmp_path / "model", GptOssOptions(num_hidden_layers=1))
    words = ("compile", tmp_path / "model", "--target", "cpu", "--output", place.artifact)
    process = place.start(*words, program=SLOW_DISK)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(3):
        assert process.stdout.readline().startswith("writes")
    assert any((partial / "weights.irpa").exists() for partial in place.out.iterdir())
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert errors.splitlines()[-1] == said
    assert "Traceback" not in errors
    assert not place.left()


def test_a_closed_terminal_ends_it_cleanly(place: Place, tmp_path: Path) -> None:
    words = ("compile", write(tmp_path, BUSY), "--target", "cpu", "--output", place.artifact)
    process = place.start(*words)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 129
    assert not place.left()


def test_strict_exits_with_one_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    # No kernel of ours takes a scale for eight elements.
    text = WEIGHT_ONLY.replace("2x16xi8", "8x4xi8").replace("x2x32", "x8x8")
    program = write(tmp_path, text.replace("64x2x", "64x8x"))
    words = ("compile", program, "--target", "gfx942", "--output", place.artifact)
    status, output, errors = place.run(*words, "--strict")
    assert (status, output) == (1, "")
    last = errors.splitlines()[-1]
    assert last.startswith("error: 1 of 1 contractions fell back on gfx942, which --strict refuses")
    assert "gfx942 has no block-scaled instruction" in last
    assert not place.left()


def test_compile_report_and_run_a_program(place: Place, tmp_path: Path) -> None:
    program = write(tmp_path, WEIGHT_ONLY)
    words = ("compile", program, "--target", "cpu", "--output", place.artifact)
    status, output, errors = place.run(*words, "--json")
    assert status == 0, errors
    report = json_text.loads(output)
    assert [matmul["rhs"] for matmul in report["matmuls"]] == ["mxfp4"]
    shown = [line.split()[:-2] for line in errors.splitlines()]
    assert [" ".join(words) for words in shown[:3]] == ["reading", "building", "passes normalize"]
    assert ["IREE", "hal"] in shown
    assert [step["name"] for step in report["steps"]] == [words[-1] for words in shown]
    again = place.run(*words)
    assert again[0] == 1
    assert (
        again[2]
        == f"error: {place.artifact}: exists; give --force to replace it, or another --output\n"
    )

    rng = np.random.default_rng(0)
    q = mxc.quantize(rng.standard_normal((64, 64)).astype(np.float32), "mxfp4")
    x = rng.standard_normal((1, 64)).astype(np.float32)
    arrays = dict[str, Any](x=x.reshape(1, 2, 32), b=q.elements.reshape(64, 2, 16), t=q.scales)
    inputs = []
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        inputs += ["--input", str(tmp_path / f"{name}.npy")]
    runner = CliRunner()
    ran = ["run", str(place.artifact), *inputs, "--output", str(tmp_path / "y.npy")]
    result = runner.invoke(app, ran)
    assert result.exit_code == 0, result.stderr
    wanted = x.astype(np.float64) @ mxc.dequantize(q).astype(np.float64).T
    bound = 65 * 2.0**-24 * (np.abs(x) @ np.abs(mxc.dequantize(q)).T)
    assert np.all(np.abs(np.load(tmp_path / "y.npy") - wanted) <= bound)

    # A tensor of rank 0 and a number look alike in the manifest; either is given as a number.
    ran = ["run", str(place.artifact), "--function", "scale"]
    result = runner.invoke(app, [*ran, "--input", "2.5", "--input", "-3", "--input", "21"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split("\n")[1::2] == ["-7.5", "-3.0", "42"]
    result = runner.invoke(app, ["report", str(place.artifact)])
    assert "f32 x mxfp4 -> f32" in result.stdout


def test_notes_are_shown_by_compile_and_report(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1), tokenizer=False, shards=1)
    record = read_checkpoint(folder).tensors["model.layers.0.mlp.experts.gate_up_proj_scales"]
    with record.file.open("r+b") as file:
        file.seek(record.offset)
        file.write(b"\xff")
    words = ("compile", folder, "--target", "cpu", "--output", place.artifact)
    process = place.start(*words, program=FAST_COMPILER)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("error: ")
    assert "expert 0 row 0 (1)" in errors
    assert not place.left()
    process = place.start(*words, "--allow-nan-scales", program=FAST_COMPILER)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert re.search(r"packing +[0-9.]+ s +[0-9.]+ KiB at [0-9.]+ .?i?B/s", errors)
    report = CliRunner().invoke(app, ["report", str(place.artifact)]).stdout
    for text in (output, report):
        assert "note: model.layers.0.mlp.experts.gate_up_proj_scales: expert 0, row 0 has 1" in text
        assert "note: the checkpoint has no tokenizer.json: a prompt can only be given as" in text
    assert output.splitlines()[-1].startswith(f"wrote {place.artifact} (")


def test_weights_none_cannot_generate(place: Place, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "model", GptOssOptions(num_hidden_layers=1))
    words = ["compile", tmp_path / "model", "--target", "cpu", "--output", place.artifact]
    process = place.start(*words, "--weights", "none", program=FAST_COMPILER)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "note: compiled without weights" in output
    result = CliRunner().invoke(app, ["generate", str(place.artifact), "--prompt", "x"])
    assert result.exit_code == 1
    assert "compile it again with its weights" in result.stderr
