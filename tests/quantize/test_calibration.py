"""`--calibrate`: the inputs of layers are those of transformers, and outputs lose less."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.compiler.cli import app
from mxc.compiler.cli.calibrate import calibrate
from mxc.compiler.models.model import open_model
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.checkpoint import QuantizationResult, quantize_checkpoint
from mxc.compiler.quantize.feedback import Feedback
from mxc.compiler.quantize.inputs import CalibrationInputs
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.errors import FormatError
from mxc.formats.formats import block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.rounding import Ties

Floats = NDArray[np.float32]

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
TEXT = "A block of thirty-two elements shares one scale, and the scale is a power of two. " * 12
#: Sequences of 64 tokens, the most that the model holds, of which calls take a whole number.
TOKENS = 192


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration") / "mixtral"
    write_decoder(folder, MIXTRAL, dtype="F32")
    write_tokenizer(folder, MIXTRAL["vocab_size"])
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def calibration(mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    scratch = tmp_path_factory.mktemp("scratch")
    return calibrate(mixtral, mixtral.parent / "text.txt", TOKENS, scratch, feedback=True)


@pytest.fixture(scope="module")
def wanted(mixtral: Path) -> dict[str, Floats]:
    """What transformers feeds into modules, [tokens, K], and what the router says."""
    ids = AutoTokenizer.from_pretrained(mixtral)(TEXT)["input_ids"][:TOKENS]
    model = AutoModelForCausalLM.from_pretrained(mixtral, dtype=torch.float32)
    found: dict[str, list[torch.Tensor]] = {}

    def hook(name: str) -> None:
        def keep(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: object) -> None:
            found.setdefault(name, []).append(inputs[0].reshape(-1, inputs[0].shape[-1]))

        model.get_submodule(name).register_forward_hook(keep)

    layer = "model.layers.0"
    hook(f"{layer}.self_attn.q_proj")
    hook(f"{layer}.self_attn.o_proj")
    hook(f"{layer}.mlp.gate")
    with torch.no_grad():
        for start in range(0, len(ids), 64):
            model(torch.tensor([ids[start : start + 64]]))
    return {name: torch.cat(rows).numpy() for name, rows in found.items()}


def same(found: CalibrationInputs | None, rows: Floats) -> None:
    assert found is not None
    np.testing.assert_allclose(found.squares, np.square(rows).mean(axis=0), rtol=2e-4)


def test_inputs_are_those_of_transformers(
    calibration: Calibration, wanted: dict[str, Floats]
) -> None:
    assert calibration.said["tokens"] == TOKENS
    layer = "model.layers.0.self_attn"
    for name in ("q_proj", "k_proj", "v_proj"):
        same(calibration.of(f"{layer}.{name}.weight"), wanted[f"{layer}.q_proj"])
    same(calibration.of(f"{layer}.o_proj.weight"), wanted[f"{layer}.o_proj"])
    assert calibration.of("model.embed_tokens.weight") is None


def test_inputs_of_experts_are_those_of_their_tokens(
    mixtral: Path, calibration: Calibration, wanted: dict[str, Floats]
) -> None:
    tensors = {n: t.numpy() for n, t in load_file(mixtral / "model.safetensors").items()}
    stem = "model.layers.0.block_sparse_moe"
    x = wanted["model.layers.0.mlp.gate"]
    chosen = np.argsort(-(x @ tensors[f"{stem}.gate.weight"].T), axis=1)[:, :2]
    for expert in range(4):
        rows = x[(chosen == expert).any(axis=1)]
        assert 0 < len(rows) < len(x)
        name = f"{stem}.experts.{expert}"
        same(calibration.of(f"{name}.w1.weight"), rows)
        same(calibration.of(f"{name}.w3.weight"), rows)
        gate, up = (rows @ tensors[f"{name}.{part}.weight"].T for part in ("w1", "w3"))
        same(calibration.of(f"{name}.w2.weight"), gate / (1 + np.exp(-gate)) * up)


def test_order_and_factor_are_those_of_the_inputs(
    calibration: Calibration, wanted: dict[str, Floats]
) -> None:
    """Order and factor of the inverse of X^T X, as numpy inverts it: the inputs were kept in
    bfloat16."""
    name = "model.layers.0.self_attn.o_proj"
    found = calibration.of(f"{name}.weight")
    assert found is not None
    assert found.feedback is not None
    x = wanted[name].astype(np.float64)
    gram = x.T @ x / len(x)
    diagonal = np.diag(gram)[found.feedback.order]
    assert (diagonal[1:] <= diagonal[:-1] * 1.01).all()
    order = np.ix_(found.feedback.order, found.feedback.order)
    correlations = np.corrcoef(np.concatenate([x, -x]).T)
    beside = np.square(correlations[~np.eye(len(gram), dtype=bool)])
    share = min(1.0, ((1 + beside) / len(x)).sum() / beside.sum())
    assert 0.01 < share < 0.5
    shrunk = gram * (1 - share) + np.diag(np.diag(gram)) * share
    inverse = np.linalg.inv(shrunk + 0.01 * np.diag(gram).mean() * np.eye(len(gram)))[order]
    ours = found.feedback.factor.T.astype(np.float64) @ found.feedback.factor
    assert np.abs(ours - inverse).max() < 0.02 * np.abs(inverse).max()


def outliers() -> tuple[Floats, Floats]:
    """Heavy-tailed weights [96, 256] and correlated inputs [1024, 256], with outliers."""
    rng = np.random.default_rng(5)
    weights = (0.02 * rng.standard_t(3, (96, 256))).astype(np.float32)
    mixed = rng.standard_normal((1024, 64)) @ rng.standard_normal((64, 256)) / 8
    x = (mixed + rng.standard_normal((1024, 256))) * np.where(rng.random(256) < 0.02, 20, 1)
    return weights, x.astype(np.float32)


def known(x: Floats, *, feedback: bool) -> CalibrationInputs:
    gram = (x.T.astype(np.float64) @ x) / len(x)
    squares = np.square(x).mean(axis=0)
    return CalibrationInputs(squares, x[::16], Feedback.of(gram, len(x)) if feedback else None)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_lose_less(name: str, dtype: str) -> None:
    weights, x = outliers()
    values = torch.tensor(weights).to(getattr(torch, dtype))
    rows = values.view(torch.uint16).numpy() if dtype == "bfloat16" else values.numpy()
    if dtype == "bfloat16":
        import ml_dtypes

        rows = rows.view(ml_dtypes.bfloat16)
    format = block_format(name)
    recipe = None if format.tensor_scale else ScaleRecipe.RCEIL
    one = RowQuantizer(format=format, recipe=recipe, search=True)
    whole = one.tensor(np.float32(np.abs(rows.astype(np.float32)).max()))
    found = {}
    for way, inputs in (
        ("search", CalibrationInputs(np.ones(256, np.float32), x[::16])),
        ("weighted", known(x, feedback=False)),
        ("feedback", known(x, feedback=True)),
    ):
        loss = one.run(rows, "w", whole=whole, inputs=inputs)[2]
        assert loss.output_sqnr is not None
        found[way] = loss.output_sqnr
    assert found["weighted"] > found["search"] + (0.5 if name == "mxfp4" else 2)
    assert found["feedback"] > found["weighted"] + 1


def test_feedback_is_the_best_correction_of_what_was_rounded() -> None:
    """After each column the others are the least squares solution, as numpy solves it."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((64, 32)) @ rng.standard_normal((32, 32))
    gram = x.T @ x / len(x)
    weights = rng.standard_normal((4, 32)).astype(np.float32)
    element = block_format("mxfp4").element
    units = np.full((4, 1), 0.25, np.float32)
    # So many inputs that nothing is chance.
    feedback = Feedback.of(gram, 1 << 60)
    codes = feedback.run(weights, units, element, Ties.EVEN)
    damped = gram + 0.01 * np.diag(gram).mean() * np.eye(32)
    values = element.values[np.isfinite(element.values)].astype(np.float64) * 0.25
    exact, left = weights.astype(np.float64), list(feedback.order)
    done: list[int] = []
    current = exact.copy()
    while left:
        column = left.pop(0)
        nearest = values[np.abs(current[:, column, None] - values).argmin(axis=1)]
        current[:, column] = nearest
        done.append(column)
        change = current[:, done] - exact[:, done]
        if left:
            cross = damped[np.ix_(left, done)]
            current[:, left] = (
                exact[:, left] - np.linalg.solve(damped[np.ix_(left, left)], cross @ change.T).T
            )
    np.testing.assert_array_equal(element.values.take(codes) * 0.25, current)


def test_correlations_by_chance_are_not_fed_back() -> None:
    """Few inputs that are not correlated: other inputs lose no more than with scales alone."""
    rng = np.random.default_rng(9)
    weights = (0.02 * rng.standard_t(3, (64, 256))).astype(np.float32)
    fed, others = np.split(rng.standard_normal((768, 256)).astype(np.float32), [256])
    one = RowQuantizer(format=block_format("mxfp4"), recipe=ScaleRecipe.RCEIL, search=True)
    found: dict[bool, Any] = {}
    for feedback in (False, True):
        inputs = replace(known(fed, feedback=feedback), sample=others)
        found[feedback] = one.run(weights, "w", inputs=inputs)[2].output_sqnr
    assert found[True] > found[False] - 0.3


def quantized(source: Path, output: Path, **options: Any) -> QuantizationResult:
    return quantize_checkpoint(source, output, "nvfp4", **options)


def test_a_checkpoint_names_text_and_recipe(
    mixtral: Path, calibration: Calibration, tmp_path: Path
) -> None:
    plain = quantized(mixtral, tmp_path / "plain", recipe="search")
    result = quantized(mixtral, tmp_path / "out", recipe="gptq", calibration=calibration)
    assert result.recipe == "gptq"
    assert result.uncalibrated == []
    assert plain.total.output_sqnr is None
    assert all(loss.output_sqnr is not None for loss in result.losses.values())
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as opened:
        said = json.loads(opened.metadata()["mxc.quantize"])
    assert said["recipe"] == "gptq"
    assert said["calibration"]["tokens"] == TOKENS
    assert len(said["calibration"]["sha256"]) == 64
    # The same tensors of the same types: whoever reads the format reads this.
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "out"))
    assert {n: (t.dtype, t.shape) for n, t in one.items()} == {
        n: (t.dtype, t.shape) for n, t in other.items()
    }
    weights = [each for each in open_model(tmp_path / "out").bound if each.format == "nvfp4"]
    assert {tensor.recipe for each in weights for tensor in each.tensors} == {"gptq"}


@pytest.mark.parametrize("recipe", ["search", "gptq"])
def test_processes_write_the_same_bytes(
    mixtral: Path, calibration: Calibration, tmp_path: Path, recipe: str
) -> None:
    one = quantized(mixtral, tmp_path / "one", recipe=recipe, calibration=calibration)
    two = quantized(
        mixtral, tmp_path / "two", recipe=recipe, calibration=calibration, workers=Workers(2)
    )
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert one.losses == two.losses
    assert one.uncalibrated == two.uncalibrated


def test_refusals(mixtral: Path, calibration: Calibration, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="give one with --calibrate"):
        quantized(mixtral, tmp_path / "out", recipe="gptq")
    with pytest.raises(FormatError, match="give search or gptq"):
        quantize_checkpoint(
            mixtral, tmp_path / "out", "mxfp4", recipe="even", calibration=calibration
        )
    text = tmp_path / "short.txt"
    text.write_text("A few words.")
    for given, said in (
        ([str(mixtral / "model.safetensors")], "wanted a checkpoint folder or a .gguf file"),
        ([str(mixtral), "--calibrate", str(tmp_path / "none.txt")], "none.txt: cannot be read"),
    ):
        words = ["quantize", *given, "-o", str(tmp_path / "out"), "--format", "mxfp4"]
        if "--calibrate" not in words:
            words += ["--calibrate", str(text)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert said in line


def test_command(mixtral: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(mixtral, source)
    (file,) = source.glob("*.safetensors")
    # A router that prefers no expert chooses the first two.
    stem, tensors = "model.layers.0.block_sparse_moe", load_file(file)
    save_file(tensors | {f"{stem}.gate.weight": torch.zeros(4, 64)}, file)
    words = ["quantize", str(source), "-o", str(tmp_path / "out"), "--format", "mxfp4"]
    words += ["--calibrate", str(mixtral.parent / "text.txt"), "--calibrate-tokens", "64"]
    words += ["--include", "*.o_proj.weight", "--include", "*.experts.3.w1.weight"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "outputs dB" in result.stdout
    assert "recipe search, calibrated with 64 tokens of text.txt" in result.stdout
    said = f"quantized without inputs, of which the text has none: {stem}.experts.3.w1.weight"
    assert said in " ".join(result.stdout.split())
    assert {each.name for each in tmp_path.iterdir()} == {"source", "out"}
