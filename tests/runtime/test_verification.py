"""`mxc verify-gpu` with the simulator in the place of a GPU, right and at fault."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinygrad.runtime.autogen.hip as published
from typer.testing import CliRunner

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.errors import RequestError
from mxc.runtime.verification import hip
from mxc.runtime.verification.compare import CODES, compare
from mxc.runtime.verification.simulated_hip import SimulatedHip
from mxc.runtime.verification.verify import Verification, _Report, verify

PROGRAM = """
func.func @main(%a: tensor<20x48xf32>, %b: tensor<24x48xf32>) -> (tensor<20x24xf32>, tensor<20xi32>)
{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x24xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<20x24xf32>) -> tensor<20x24xf32>
  %p = linalg.matmul indexing_maps = [
      affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>]
    ins(%a, %b : tensor<20x48xf32>, tensor<24x48xf32>)
    outs(%c : tensor<20x24xf32>) -> tensor<20x24xf32>
  %n = arith.constant 0 : i32
  %f = tensor.empty() : tensor<20xi32>
  %d = linalg.fill ins(%n : i32) outs(%f : tensor<20xi32>) -> tensor<20xi32>
  %s = linalg.reduce ins(%p : tensor<20x24xf32>) outs(%d : tensor<20xi32>) dimensions = [1]
    (%i: f32, %o: i32) {
      %1 = arith.fptosi %i : f32 to i32
      %t = arith.addi %1, %o : i32
      linalg.yield %t : i32
    }
  return %p, %s : tensor<20x24xf32>, tensor<20xi32>
}
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    (folder / "program.mlir").write_text(PROGRAM)
    mxc.compile(folder / "program.mlir", target="gfx950", output=folder / "program.mxc")
    return folder / "program.mxc"


def run(artifact: Path, library: Any, **options: Any) -> Verification:
    given = {"function": "main", "arguments": None, "tokens": 4, "repetitions": 1} | options
    return verify(
        artifact, library=library, uri="simulator", index=None, seen=lambda _: None, **given
    )


def test_the_file_has_every_kernel(artifact: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["verify-gpu", str(artifact), "--simulator", "--repetitions", "2"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert found["schema"] == 1
    assert (found["device"], found["architecture"]) == ("simulator", "gfx950")
    assert found["agrees"] is True
    assert found["failure"] is None
    assert len(found["digest"]) == 64
    report = json.loads((artifact / "report.json").read_text())
    assert {k["name"] for k in found["kernels"]} == {k["name"] for k in report["kernels"]}
    for kernel in found["kernels"]:
        assert kernel["compared_bytes"] > 0
        assert 0 <= kernel["error"] <= kernel["bound"]
        assert kernel["seconds"] > 0
        assert kernel["ratio"] == kernel["seconds"] / kernel["model_seconds"]
        assert len(kernel["arguments"]["workgroups"]) == 3
    assert [f["name"] for f in found["functions"]] == ["main, result 0", "main, result 1"]


class Faulty(SimulatedHip):
    """Changes one word of what each kernel with a certain name writes."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        super().__init__("gfx950")
        self._wanted, self._change = name, change

    def hipModuleLaunchKernel(self, function: Any, *given: Any) -> int:
        before = {address: data.copy() for address, data in self._memory.items()}
        status = super().hipModuleLaunchKernel(function, *given)
        if self._wanted in self._handles[function.value - 1].kernel.name:
            for address, data in self._memory.items():
                words, old = data.view(np.uint32), before[address].view(np.uint32)
                if (words != old).any():
                    self._change(words[np.flatnonzero(words != old)[:1][0] :][:1])
        return status


def lose_bits(word: Any) -> None:
    word &= 0xFFFF0000


def add_one(word: Any) -> None:
    word += 1


@pytest.mark.parametrize(("name", "change"), [("matmul", lose_bits), ("reduction", add_one)])
def test_a_wrong_kernel_is_found_and_no_other(artifact: Path, name: str, change: Any) -> None:
    found = run(artifact, Faulty(name, change))
    wrong = {each.name for each in found.kernels if not each.agrees}
    assert len(found.kernels) == 2
    assert len(wrong) == 1
    assert name in wrong.pop()
    assert not found.agrees


def test_a_model_is_run(tmp_path: Path) -> None:
    """What joins pieces of attention has no workgroup where there is one: HIP refuses to run it."""
    options = GptOssOptions(num_hidden_layers=1, layer_types=("full_attention",), vocab_size=512)
    write_gpt_oss(tmp_path / "checkpoint", options, tokenizer=False)
    place = tmp_path / "model.mxc"
    mxc.compile(tmp_path / "checkpoint", "gfx950", place, max_sequence_length=32)
    found = run(place, SimulatedHip("gfx950"), function=None, tokens=None)
    assert found.failure is None
    assert found.agrees
    # The last token of 32 is a sample of the report, and the prompt before it is none.
    assert [each.name for each in found.functions] == ["prompt of 31", "decode"]
    estimated = [each for each in found.kernels if each.ratio is not None]
    assert {"schedule", "roofline"} == {each.model for each in estimated}
    assert len(found.kernels) / 3 < len(estimated) < len(found.kernels)
    names = [kernel.name for kernel in found.kernels]
    assert any(name.startswith("mxc_attention") for name in names)
    assert not any(name.endswith("_merged") for name in names)


def test_a_last_bit_of_a_sum_is_no_fault(artifact: Path) -> None:
    found = run(artifact, Faulty("matmul", add_one))
    (product,) = (each for each in found.kernels if "matmul" in each.name)
    assert 0 < product.error <= product.bound
    assert found.agrees


class Failing(SimulatedHip):
    def hipModuleLaunchKernel(self, *_: Any) -> int:
        return 700


def test_a_failure_is_in_the_file(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mxc.runtime.verification.verify.simulated_library", lambda _: Failing("gfx950")
    )
    file = tmp_path / "found.json"
    result = CliRunner().invoke(
        app, ["verify-gpu", str(artifact), "--simulator", "--output", str(file)]
    )
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "hipModuleLaunchKernel gave error 700" in line
    assert "error 700" in json.loads(file.read_text())["failure"]


def test_without_a_gpu_it_says_what_to_do(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hip, "LIBRARIES", ("libno-such-hip.so",))
    result = CliRunner().invoke(
        app, ["verify-gpu", str(artifact), "--output", str(tmp_path / "found.json")]
    )
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "no AMD GPU here" in line
    assert "--simulator" in line
    assert not (tmp_path / "found.json").exists()


class Absent(SimulatedHip):
    def hipGetDeviceCount(self, _: Any) -> int:
        return 100


def test_refusals(artifact: Path) -> None:
    with pytest.raises(RequestError, match="HIP finds no device"):
        run(artifact, Absent("gfx950"))
    with pytest.raises(RequestError, match=r"compiled for gfx950, .* simulator \(gfx942\)"):
        run(artifact, SimulatedHip("gfx942"))
    with pytest.raises(RequestError, match="no function 'other'"):
        run(artifact, SimulatedHip("gfx950"), function="other")


def test_what_is_called_is_what_hip_has() -> None:
    """Number of arguments, and the place of the architecture, against another project's binding."""
    for name, function in inspect.getmembers(SimulatedHip, inspect.isfunction):
        if name.startswith("hip"):
            own = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
            other = inspect.signature(getattr(published, name).__wrapped__).parameters
            variable = any(p.kind is p.VAR_POSITIONAL for p in own)
            assert variable or len(own) == len(other), name
    properties: Any = published.hipDeviceProp_tR0600
    assert properties.gcnArchName.offset == hip.ARCHITECTURE
    assert hip.PROPERTIES == properties.SIZE


def compared(before: Any, wanted: Any, found: Any, *types: str) -> Any:
    raw = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (before, wanted)]
    return compare([raw[0]], [raw[1]], [np.ascontiguousarray(found).view(np.uint8)], types)


def test_floats_within_their_bound() -> None:
    zero, right = np.zeros(8, np.float32), np.arange(8, dtype=np.float32)
    assert compared(zero, right, right * np.float32(1 + 1e-5), "f32").agrees
    assert not compared(zero, right, right * np.float32(1.001), "f32").agrees
    lost = right.copy()
    lost[3] = np.nan
    assert not compared(zero, right, lost, "f32").agrees
    assert compared(zero, lost, lost, "f32").agrees
    assert not compared(zero, right, zero, "f32").agrees


def test_what_nobody_writes_does_not_count() -> None:
    """A large number beside the result would hide that it is wrong."""
    before = np.array([1e30, 0, 0, 0], np.float32)
    right, wrong = before.copy(), before.copy()
    right[1:], wrong[1:] = (1, 2, 3), (1, 2, 4)
    assert compared(before, right, wrong, "f32").error == pytest.approx(1 / 3)


def test_integers_are_exact_beside_floats_too() -> None:
    zero, right = np.zeros(8, np.int32), np.arange(8, dtype=np.int32)
    assert not compared(zero, right, right[::-1].copy(), "i32").agrees
    mixed = np.concatenate([np.linspace(1, 2, 8, dtype=np.float32).view(np.int32), right])
    near = mixed.copy()
    near[2] += 1
    assert compared(np.zeros(16, np.int32), mixed, near, "f32", "i32").agrees
    near[10] += 1
    assert not compared(np.zeros(16, np.int32), mixed, near, "f32", "i32").agrees


def test_few_codes_may_be_their_neighbours() -> None:
    zero, right = np.zeros(10000, np.int8), np.full(10000, 5, np.int8)
    some = right.copy()
    some[:5] = 6
    assert compared(zero, right, some, "i8").agrees
    assert not compared(zero, right, some).agrees
    assert not compared(zero, right, some, "i8", "i32").agrees
    some[: int(2e4 * CODES)] = 6
    assert not compared(zero, right, some, "i8").agrees


def test_a_model_is_run_as_far_as_its_report_estimates(tmp_path: Path) -> None:
    """The shortest sequence of which the last token is a sample."""
    samples = [{"name": "", "rows": r, "positions": p} for r, p in ((1, 96), (1, 48), (8, 8))]
    report = {"kernels": [], "operations": [], "samples": samples}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert _Report(tmp_path).decoded == 48
