"""Artifacts for gfx950: the simulator runs their host programs; results are those of the CPU."""

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from typer.testing import CliRunner

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.errors import RequestError
from mxc.runtime.simulated import SimulatedModel, load
from mxc.simulator.watch.sanitizer import Sanitizer

PROGRAM = """
func.func @main(%a: tensor<20x48xf32>, %b: tensor<24x48xf32>) -> (tensor<20x24xf32>, tensor<20xf32>)
{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x24xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<20x24xf32>) -> tensor<20x24xf32>
  %p = linalg.matmul indexing_maps = [
      affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>]
    ins(%a, %b : tensor<20x48xf32>, tensor<24x48xf32>)
    outs(%c : tensor<20x24xf32>) -> tensor<20x24xf32>
  %x = math.exp %p : tensor<20x24xf32>
  %f = tensor.empty() : tensor<20xf32>
  %d = linalg.fill ins(%z : f32) outs(%f : tensor<20xf32>) -> tensor<20xf32>
  %s = linalg.reduce ins(%x : tensor<20x24xf32>) outs(%d : tensor<20xf32>) dimensions = [1]
    (%i: f32, %o: f32) {
      %t = arith.addf %i, %o : f32
      linalg.yield %t : f32
    }
  return %x, %s : tensor<20x24xf32>, tensor<20xf32>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> SimulatedModel:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.mlir").write_text(PROGRAM)
    mxc.compile(
        folder / "program.mlir", target="gfx950", output=folder / "program.mxc", listing=False
    )
    return cast(SimulatedModel, mxc.load(folder / "program.mxc", device="simulator"))


def test_a_program_of_several_kernels(program: SimulatedModel) -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0, 0.3, (20, 48)).astype(np.float32)
    b = rng.normal(0, 0.3, (24, 48)).astype(np.float32)
    product, total = program.call("main", a, b)
    wanted = np.exp(a.astype(np.float64) @ b.T)
    np.testing.assert_allclose(product, wanted, rtol=1e-5)
    np.testing.assert_allclose(total, wanted.sum(axis=1), rtol=1e-5)
    assert len(program.dispatches) >= 2
    assert all(d.stepped > 0 for d in program.dispatches)


def test_arguments_are_checked_as_elsewhere(program: SimulatedModel) -> None:
    with pytest.raises(RequestError, match="wants f32"):
        program.call("main", np.zeros((20, 48), np.float64), np.zeros((24, 48), np.float32))
    with pytest.raises(RequestError, match="no function 'other'"):
        program.call("other")


def test_on_the_command_line(program: SimulatedModel, tmp_path: Path) -> None:
    a, b = np.full((20, 48), 0.25, np.float32), np.full((24, 48), 0.125, np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    arguments = ["run", str(program.path), "--device", "simulator"]
    for name in ("a", "b"):
        arguments += ["--input", str(tmp_path / f"{name}.npy")]
    for name in ("x", "s"):
        arguments += ["--output", str(tmp_path / f"{name}.npy")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), np.exp(48 / 32), rtol=1e-6)


def test_every_dispatch_under_a_sanitizer(program: SimulatedModel) -> None:
    sanitizers: list[Sanitizer] = []

    def observe(kernel: object) -> Sanitizer:
        sanitizers.append(Sanitizer())
        return sanitizers[-1]

    watched = load(program.path, observe=observe)
    watched.call("main", np.zeros((20, 48), np.float32), np.zeros((24, 48), np.float32))
    assert len(sanitizers) == len(watched.dispatches)
    assert not [finding for s in sanitizers for finding in s.findings]


def test_an_artifact_for_another_target(toy_artifact: Path) -> None:
    with pytest.raises(RequestError, match="the simulator runs gfx950 and gfx942"):
        load(toy_artifact)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile a gpt-oss of one layer for gfx950 and the CPU, both with bf16 activations."""
    folder = tmp_path_factory.mktemp("tiny")
    options = GptOssOptions(num_hidden_layers=1, layer_types=("sliding_attention",), vocab_size=512)
    write_gpt_oss(folder / "checkpoint", options)
    for target in ("gfx950", "cpu"):
        mxc.compile(
            folder / "checkpoint",
            target=target,
            output=folder / f"{target}.mxc",
            max_sequence_length=32,
            activations="bf16",
            listing=False,
        )
    return {"simulator": folder / "gfx950.mxc", "cpu": folder / "cpu.mxc"}


def test_logits_are_those_of_the_cpu(tiny: dict[str, Path]) -> None:
    """Prefill, then decode. Roundings to bf16 fall differently where sums are in another order, so
    that the bound is a few of its steps.
    """
    logits = {}
    for name, artifact in tiny.items():
        device = "simulator" if name == "simulator" else None
        sequence = mxc.load(artifact, device=device).sequence()
        logits[name] = np.concatenate([sequence.feed([5, 17, 200, 3, 77, 402]), sequence.feed([9])])
    largest = np.abs(logits["cpu"]).max()
    assert largest > 1
    np.testing.assert_allclose(logits["simulator"], logits["cpu"], atol=2**-7 * largest, rtol=0)
    assert (logits["simulator"].argmax(axis=1) == logits["cpu"].argmax(axis=1)).all()


def test_attention_stores_what_the_product_after_it_reads(tiny: dict[str, Path]) -> None:
    """The output projection multiplies bf16, and reads no f32."""
    report = json.loads((tiny["simulator"] / "report.json").read_text())
    (product,) = (each for each in report["matmuls"] if each["name"].endswith("o_proj"))
    assert product["kernel"].startswith("mxc_bf16_bf16_")


@pytest.mark.parametrize(
    ("target", "activations", "steps", "rows"),
    [("gfx950", "bf16", 2**-7, 32), ("gfx942", "mxfp4", 2**-4, 64)],
)
def test_logits_of_a_prompt_with_many_rows_an_expert(
    target: str, activations: str, steps: float, rows: int, tiny: dict[str, Path]
) -> None:
    """66 tokens of two experts each: groups of many rows, where a few tokens have groups of 16.

    Elements of mxfp4 differ by half of themselves where a rounding falls differently.
    """
    folder, logits = tiny["cpu"].parent, []
    tokens = np.random.default_rng(0).integers(0, 512, 66).tolist()
    for name, device in ((target, "simulator"), ("cpu", None)):
        artifact = folder / f"{name}-{activations}.mxc"
        mxc.compile(
            folder / "checkpoint",
            target=name,
            output=artifact,
            max_sequence_length=80,
            activations=activations,
            listing=False,
        )
        sequence = mxc.load(artifact, device=device).sequence()
        logits.append(np.concatenate([sequence.feed(tokens), sequence.feed([9])]))
    largest = np.abs(logits[1]).max()
    np.testing.assert_allclose(logits[0], logits[1], atol=steps * largest, rtol=0)
    report = json.loads((folder / f"{target}-{activations}.mxc" / "report.json").read_text())
    (experts,) = (row for row in report["matmuls"] if row["name"].endswith("gate_up_proj"))
    assert [experts["samples"][name]["m"] for name in ("token", "prompt")] == [16, rows]


def test_generated_tokens_are_those_of_the_cpu(tiny: dict[str, Path], tmp_path: Path) -> None:
    """With everything that watches a run at once: no finding, and the counts and trace of it."""
    words = ["--prompt-tokens", "5,17,200,3,77,402", "--max-new-tokens", "3", "--json"]
    watched = ["--sanitize", "--count", "--trace", str(tmp_path / "trace.txt")]
    found = {}
    for name, artifact in tiny.items():
        extra = ["--device", "simulator", *watched] if name == "simulator" else []
        result = CliRunner().invoke(app, ["generate", str(artifact), *words, *extra])
        assert result.exit_code == 0, (result.stdout, result.stderr)
        found[name] = json.loads(result.stdout)
    assert len(found["cpu"]["tokens"]) == 3
    assert found["simulator"]["tokens"] == found["cpu"]["tokens"]
    seen = found["simulator"]["simulator"]
    assert seen["findings"] == []
    kernels = {row["kernel"] for row in seen["counts"] if row["waves"]}
    traced = {
        line.split()[1].rstrip(",") for line in (tmp_path / "trace.txt").open() if "#" in line
    }
    assert kernels == traced
