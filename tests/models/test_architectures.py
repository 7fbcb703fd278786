"""Logits of every architecture in float32, against transformers; of gpt-oss with plain experts.

Each checkpoint is written by transformers; then attention, or the MLPs, become mxfp4 in the dialect
of compressed-tensors, and the others stay as they are. The reference is transformers' model of the
same checkpoint with what our numpy reference makes of those blocks.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import mxc
from mxc.dialects.manifest import REPORT
from mxc.dialects.reference import dequantize, quantize
from mxc.runtime import Model

#: Of the root mean square of all logits, as in test_logits.py.
TOLERANCE = 2e-5

#: Tokens of a sequence; its chunks; how many sequences are decoded together.
LENGTH, CHUNK, BATCH = 29, 8, 2

#: Those of which sequences are decoded together: one of each kind of layers.
BATCHED = ("llama", "mixtral")

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
}

#: Where rotary frequencies are stretched, most of a sequence lies beyond the original context.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0,
        "original_max_position_embeddings": 16}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}

ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")

#: Name -> transformers' config, dtype of what stays plain, formats by the ends of names.
CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    "llama": (
        transformers.LlamaConfig(
            **SMALL, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    "mistral": (
        transformers.MistralConfig(**SMALL, sliding_window=7, head_dim=32, rope_parameters=LINEAR),
        torch.float32,
        MLP,
    ),
    # The first layer sees everything, the second slides.
    "qwen2": (
        transformers.Qwen2Config(
            **SMALL | {"num_hidden_layers": 2},
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=1,
        ),
        torch.float16,
        MLP,
    ),
    "qwen3": (
        transformers.Qwen3Config(**SMALL, head_dim=32, rope_parameters=YARN),
        torch.bfloat16,
        ATTENTION,
    ),
    # The shares of the chosen experts do not add up to one; the second layer has no experts.
    "qwen3_moe": (
        transformers.Qwen3MoeConfig(
            **SMALL | {"num_hidden_layers": 2},
            head_dim=32,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        torch.bfloat16,
        MLP,
    ),
    "mixtral": (
        transformers.MixtralConfig(
            **SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=9
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    # The module has experts as [experts, in, out], gate and up in turn.
    "gpt_oss": (
        transformers.GptOssConfig(
            **SMALL, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=5
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    # Every matrix in its own format: gate and up are two products, and activations are prepared
    # for blocks of 32 and of 16.
    "formats": (
        transformers.LlamaConfig(**SMALL),
        torch.bfloat16,
        {
            "q_proj": "mxfp8e4m3",
            "k_proj": "mxfp6e2m3",
            "v_proj": "nvfp4",
            "o_proj": "mxfp4",
            "gate_proj": "mxfp8e4m3",
            "up_proj": "mxfp4",
            "down_proj": "nvfp4",
        },
    ),
}

#: Format -> its name in a config of compressed-tensors, bits, elements that share a scale.
DECLARED = {
    "mxfp4": ("mxfp4-pack-quantized", 4, 32),
    "mxfp6e2m3": ("mxfp6-pack-quantized", 6, 32),
    "mxfp8e4m3": ("mxfp8-quantized", 8, 32),
    "nvfp4": ("nvfp4-pack-quantized", 4, 16),
}

each = pytest.mark.parametrize("name", CASES)

Tensors = dict[str, torch.Tensor]


def random_model(config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose activations keep their size from layer to layer."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    random = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() == 1:
            weight.data = (0 if name.endswith("bias") else 1) + 0.1 * draw
        else:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.tie_weights()
    return model.to(dtype)


def packed(name: str, weight: torch.Tensor, format: str) -> tuple[Tensors, torch.Tensor]:
    """What compressed-tensors stores of a weight, and its value in float32."""
    values = weight.float().numpy()
    q = quantize(values, format, recipe=None if format == "nvfp4" else "even")
    stem = name.removesuffix("weight")
    rows = values.shape[0]
    elements = torch.from_numpy(q.elements.reshape(rows, -1).copy())
    scales = torch.from_numpy(q.scales.reshape(rows, -1).copy())
    stored = {f"{stem}weight_packed": elements, f"{stem}weight_scale": scales}
    if format.startswith("mxfp8"):
        stored = {
            f"{stem}weight": elements.view(torch.float8_e4m3fn),
            f"{stem}weight_scale": scales,
        }
    if format == "nvfp4":
        stored[f"{stem}weight_scale"] = scales.view(torch.float8_e4m3fn)
        stored[f"{stem}weight_global_scale"] = torch.tensor([1 / q.tensor_scale])
    return stored, torch.from_numpy(dequantize(q).reshape(values.shape).copy())


def write(folder: Path, name: str) -> None:
    """`checkpoint`, in blocks, and `reference`, of the same values in float32."""
    config, dtype, formats = CASES[name]
    random_model(config, dtype).save_pretrained(folder / "plain")
    plain = load_file(folder / "plain" / "model.safetensors")
    stored: Tensors = {}
    values: Tensors = {}
    modules: dict[str, list[str]] = {}
    for tensor, weight in plain.items():
        module = tensor.removesuffix(".weight")
        format = formats.get(module.rpartition(".")[2])
        if format is not None and weight.dim() == 2:
            parts, values[tensor] = packed(tensor, weight, format)
            stored |= parts
            modules.setdefault(format, []).append(module)
        else:
            stored[tensor], values[tensor] = weight, weight.float()
    raw = json.loads((folder / "plain" / "config.json").read_text())
    for where, tensors in (("checkpoint", stored), ("reference", values)):
        (folder / where).mkdir()
        contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(contiguous, folder / where / "model.safetensors", metadata={"format": "pt"})
        (folder / where / "config.json").write_text(json.dumps(raw))
    raw["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            f"group_{number}": {
                "format": DECLARED[format][0],
                "targets": targets,
                "weights": {
                    "num_bits": DECLARED[format][1],
                    "type": "float",
                    "strategy": "tensor_group" if format == "nvfp4" else "group",
                    "group_size": DECLARED[format][2],
                    "symmetric": True,
                    "dynamic": False,
                },
            }
            for number, (format, targets) in enumerate(modules.items())
        },
        "ignore": [],
    }
    (folder / "checkpoint" / "config.json").write_text(json.dumps(raw))


@dataclass(frozen=True)
class Built:
    """A checkpoint, its artifact, and what both compute."""

    folder: Path

    @cached_property
    def model(self) -> Model:
        return mxc.load(self.folder / "model.mxc")

    @cached_property
    def tokens(self) -> list[int]:
        random = np.random.default_rng(0)
        return [int(token) for token in random.integers(0, SMALL["vocab_size"], LENGTH)]

    @cached_property
    def wanted(self) -> NDArray[np.float64]:
        reference = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / "reference", dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            logits = reference(torch.tensor([self.tokens]), use_cache=False).logits
        return logits[0].double().numpy()


def build(folder: Path, name: str) -> Built:
    write(folder, name)
    mxc.compile(
        folder / "checkpoint",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=LENGTH,
        prefill_chunk=CHUNK,
        batch=[BATCH] if name in BATCHED else None,
    )
    return Built(folder)


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Built]]:
    """The model of a case. Two are compiled at a time, ahead of the tests that ask for them."""
    pool = ThreadPoolExecutor(max_workers=2)
    made: dict[str, Future[Built]] = {}
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if item.path == request.path and callspec is not None and "name" in callspec.params:
            name = callspec.params["name"]
            if name not in made:
                made[name] = pool.submit(build, tmp_path_factory.mktemp(name), name)
    yield lambda name: made[name].result()
    pool.shutdown(cancel_futures=True)


def deviation(found: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    """The largest difference, in units of the root mean square of what is wanted."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_library_reads_the_same_weights(name: str, built: Callable[[str], Built]) -> None:
    """compressed-tensors dequantises the checkpoint to the values of the reference."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        built(name).folder / "checkpoint",
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )
    values = load_file(built(name).folder / "reference" / "model.safetensors")
    found = dict(theirs.named_parameters())
    assert values.keys() == found.keys()
    assert [key for key in values if not torch.equal(found[key], values[key])] == []


@each
def test_prefill(name: str, built: Callable[[str], Built]) -> None:
    """Several chunks, the last one ragged, to the end of the cache."""
    model = built(name)
    assert deviation(model.model.sequence().feed(model.tokens), model.wanted) <= TOLERANCE


@each
def test_decode(name: str, built: Callable[[str], Built]) -> None:
    model = built(name)
    sequence = model.model.sequence()
    rows = np.concatenate([sequence.feed([token]) for token in model.tokens])
    assert deviation(rows, model.wanted) <= TOLERANCE


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Callable[[str], Built]) -> None:
    model = built(name)
    sequences = [model.model.sequence() for _ in range(BATCH)]
    starts = (3, 20)
    for sequence, start in zip(sequences, starts, strict=True):
        for first, last in ((0, start // 2), (start // 2, start)):
            found = sequence.feed(model.tokens[first:last])
            assert deviation(found, model.wanted[first:last]) <= 2 * TOLERANCE
    batch = model.model.batch()
    for step in range(4):
        places = [start + step for start in starts]
        found = batch.feed(sequences, [model.tokens[place] for place in places])
        assert deviation(found, model.wanted[places]) <= 2 * TOLERANCE


@each
def test_weights_are_read_as_they_are(name: str, built: Callable[[str], Built]) -> None:
    """Each in its format, by a kernel of ours where there is one."""
    report = json.loads((built(name).folder / "model.mxc" / REPORT).read_text())
    formats = set(CASES[name][2].values())
    rows = [row for row in report["matmuls"] if "layers.0." in row["name"]]
    plain = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[CASES[name][1]]
    wanted = formats if name == "formats" else {*formats, plain}
    assert wanted <= {row["rhs"] for row in rows}
    by_ours = [row for row in rows if row["rhs"] in formats]
    assert by_ours
    assert all(row["kernel"].startswith("mxc_") for row in by_ours)
