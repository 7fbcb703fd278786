"""Keys and values in the formats of --kv-cache, against transformers with keys and values rounded.

What is written to the pages is, but for the last bits of a float32 before it, what the numpy
reference makes of transformers' keys and values. An element that is on the other side of a rounding
is another number of the format, so that logits differ by more than those of float32 do.
"""

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss
from typer.testing import CliRunner

import mxc
from mxc.artifact.manifest import PageRecord
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.errors import CheckpointError
from mxc.formats.reference import dequantize, quantize
from mxc.runtime.evaluation import evaluate

#: The largest difference, of the root mean square of all logits; and of rows before the first such
#: element, that of test_logits.py.
TOLERANCE, EXACT = {"mxint8": 1e-2, "mxfp8": 1e-1, "fp8": 1e-1, "bf16": 1e-2}, 2e-5
FORMATS = {"mxint8": "mxint8", "mxfp8": "mxfp8e4m3"}
LENGTH = 150

CASES: dict[str, dict[str, Any]] = {
    name: {
        "options": GptOssOptions(
            head_dim=64, vocab_size=257, sliding_window=40, num_key_value_heads=2
        ),
        "activations": "f32",
        "kv_cache": name,
        "length": LENGTH,
    }
    for name in TOLERANCE
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
packed_case = pytest.mark.parametrize("case", [CASES[name] for name in FORMATS], ids=list(FORMATS))


def fp8(values: NDArray[Any]) -> NDArray[Any]:
    """As e4m3: what is beyond the largest number is the largest."""
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn)


def rounded(x: torch.Tensor, name: str) -> torch.Tensor:
    """Keys or values [.., D] as the cache has them."""
    values = x.numpy()
    if name in FORMATS:
        found = dequantize(quantize(values, FORMATS[name], recipe="rceil"))
    elif name == "fp8":
        found = fp8(values).astype(np.float32)
    else:
        found = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    return torch.from_numpy(found)


def deviation(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The largest difference, in units of the root mean square of what is wanted."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)))


@each_case
def test_logits(case: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built, name, plain = compiled(case), case["kv_cache"], modeling_gpt_oss.eager_attention_forward
    exact = built.wanted

    def attention(module: Any, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
        return plain(module, query, rounded(key, name), rounded(value, name), *given, **named)

    monkeypatch.setattr(modeling_gpt_oss, "eager_attention_forward", attention)
    with torch.no_grad():
        logits = built.reference(torch.tensor([built.tokens]), use_cache=False).logits
    wanted = logits[0].double().numpy()
    found = built.model.sequence().feed(built.tokens)
    error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    cost = np.sqrt(np.mean((exact - wanted) ** 2) / np.mean(wanted**2))
    print(f"{name}: {deviation(found, wanted):.2e} at most, {error:.2e}; the format {cost:.2e}")
    assert deviation(found, wanted) <= TOLERANCE[name]
    assert deviation(found[:8], wanted[:8]) <= EXACT
    # What the format itself costs is much more.
    assert error < cost / 10


@packed_case
def test_pages_are_those_of_the_reference(case: Any, compiled: Any) -> None:
    """The bytes of the first layer are a quantization of numbers in the format."""
    built = compiled(case)
    sequence = built.model.sequence()
    sequence.feed(built.tokens[:70])
    (record, *_) = built.model.manifest.model.pages
    assert isinstance(record, PageRecord)
    pages = sequence.pages()
    assert pages.dtype == np.int8
    assert pages.shape[1:] == record.stored.shape
    entries, positions, heads, depth = record.shape
    scales = pages[:, :, positions:].reshape(len(pages), entries, heads, depth // 32, positions)
    codes = pages[:, :, :positions].reshape(*pages.shape[:2], positions, heads, depth // 32, 32)
    written = np.moveaxis(scales, -1, 2)[0]
    elements = codes[0].view(np.uint8) & 127 if case["kv_cache"] == "mxfp8" else np.abs(codes[0])
    # RCEIL: the largest element is more than half of the largest that there is.
    least = 0x76 if case["kv_cache"] == "mxfp8" else 63
    assert (elements.max(axis=-1) >= least).all()
    assert (written.view(np.uint8) > 0).all()


@each_case
def test_bits_of_a_row_are_its_own(case: Any, compiled: Any) -> None:
    """At once, token by token, in parts with company, and after a fork in the middle of a page."""
    built = compiled(case)
    whole = built.model.sequence().feed(built.tokens)
    sequence = built.model.sequence()
    parts = [sequence.feed(built.tokens[:90]), sequence.feed(built.tokens[90:97])]
    other = built.draw(3)
    forked = sequence.fork().feed(other[97:])
    parts += [sequence.feed([token]) for token in built.tokens[97:]]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    again = built.model.sequence().feed(built.tokens[:97] + other[97:])
    np.testing.assert_array_equal(again[97:], forked)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mxc.runtime.Model]:
    """A Llama, by the format of its cache: no router turns a small difference into a large one."""
    folder = tmp_path_factory.mktemp("dense")
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=LENGTH,
    )  # fmt: skip
    random, model = torch.Generator().manual_seed(1), LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() > 1:
            # Activations keep their size from layer to layer.
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.to(torch.bfloat16).save_pretrained(folder / "checkpoint")
    found = {}
    for name in TOLERANCE:
        output = folder / f"{name}.mxc"
        checkpoint = folder / "checkpoint"
        mxc.compile(checkpoint, "cpu", output, activations="f32", kv_cache=name, listing=False)
        found[name] = mxc.load(output)
    return found


@pytest.mark.parametrize(("name", "bound"), [("mxint8", 1e-3), ("mxfp8", 1e-2), ("fp8", 1e-2)])
def test_divergence(name: str, bound: float, dense: dict[str, mxc.runtime.Model]) -> None:
    """Divergence of the predictions from those with a cache of bf16."""
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 1000, 3 * LENGTH)]
    found = evaluate(dense[name], tokens, window=LENGTH, against=dense["bf16"]).difference
    assert found is not None
    print(f"{name}: KL {found.mean_kl:.2e}")
    assert 0 < found.mean_kl < bound


def test_what_a_token_takes(compiled: Any) -> None:
    """8.25 bits of 16, and 8."""
    packed, plain, single = (compiled(CASES[name]) for name in ("mxint8", "bf16", "fp8"))
    taken = [each.model.manifest.model.bytes_per_token for each in (packed, plain, single)]
    assert taken[1] == 2 * 2 * 2 * 64 * 2
    assert taken[0] * 16 == taken[1] * 8.25
    assert taken[2] * 2 == taken[1]
    record = single.model.manifest.model.pages[0]
    assert (record.format, record.dtype, record.shape) == ("fp8e4m3", "i8", (2, 64, 2, 64))
    assert record.stored.shape == record.shape
    assert packed.model.manifest.options["kv_cache"] == "mxint8"
    record = packed.model.manifest.model.pages[0]
    assert (record.format, record.dtype, record.shape) == ("mxint8", "i8", (2, 64, 2, 64))
    result = CliRunner().invoke(app, ["report", str(packed.artifact)])
    assert result.exit_code == 0, result.stderr
    assert "a token (cache, mxint8)" in result.stdout


@packed_case
def test_quantized_by_our_kernels(case: Any, compiled: Any) -> None:
    """Keys and values of a layer by the one that rotates and writes, attention by another."""
    kernels = json.loads((compiled(case).artifact / "report.json").read_text())
    text = json.dumps(kernels)
    assert re.search(rf"mxc_rotary_write_\w+_{FORMATS[case['kv_cache']]}_", text)
    assert "mxc_quantize" not in text
    assert "mxc_attention" in text


def test_refusals(tmp_path: Path) -> None:
    place = tmp_path / "model"
    write_gpt_oss(place, GptOssOptions(head_dim=48, num_hidden_layers=1), tokenizer=False)
    for target, name, said in (
        ("cpu", "mxfp4", "--kv-cache mxfp4: not supported; supported are bf16, f32, fp8, mxint8"),
        ("cpu", "mxint8", "keys have 48 elements a head"),
        ("gfx950", "mxfp8", "keys have 48 elements a head"),
        ("gfx1201", "fp8", "keys have 48 elements a head"),
    ):
        with pytest.raises(CheckpointError, match=said):
            mxc.compile(place, target, tmp_path / "out", kv_cache=name)
    uneven = tmp_path / "uneven"
    write_gpt_oss(uneven, GptOssOptions(head_dim=96, num_hidden_layers=1), tokenizer=False)
    for target in ("gfx942", "gfx950"):
        with pytest.raises(CheckpointError, match="values have 96 elements a head; kernels of"):
            mxc.compile(uneven, target, tmp_path / "out", kv_cache="mxint8")
    words = ["compile", str(place), "-o", str(tmp_path / "out"), "--kv-cache", "mxint8"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "--kv-cache mxint8: keys have 48 elements" in " ".join(result.stderr.split())
    program = tmp_path / "program.mlir"
    program.write_text("module {}")
    with pytest.raises(CheckpointError, match="--kv-cache has no meaning for a program"):
        mxc.compile(program, "cpu", tmp_path / "out", kv_cache="mxint8")
