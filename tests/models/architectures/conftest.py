"""Small checkpoints of architectures with packed weights, compiled beside transformers' models.

A test module has CASES: name -> `Case`. Each checkpoint is written by transformers; then the
matrices that the case names become blocks in the dialect of compressed-tensors, and the others stay
as they are. The reference is transformers' model of the same checkpoint with what our numpy
reference makes of those blocks.
"""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
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
from mxc.formats.reference import dequantize, quantize
from mxc.runtime import Model

#: Tokens of a sequence; how many sequences are decoded together.
LENGTH, BATCH = 29, 2
#: Tokens of a prompt, and of what is generated after it.
PROMPT, GENERATED = 7, 64

#: Format -> its name in a config of compressed-tensors, bits, elements that share a scale.
DECLARED = {
    "mxfp4": ("mxfp4-pack-quantized", 4, 32),
    "mxfp6e2m3": ("mxfp6-pack-quantized", 6, 32),
    "mxfp8e4m3": ("mxfp8-quantized", 8, 32),
    "nvfp4": ("nvfp4-pack-quantized", 4, 16),
}

#: Of the root mean square of all logits of transformers in float64, or so many times what it loses
#: in float32.
TOLERANCE, ROUNDING = 2e-5, 3

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A checkpoint: transformers' config, dtype of what stays plain, formats by ends of names; and
    how many devices compute it."""

    config: Any
    dtype: torch.dtype
    formats: dict[str, str]
    devices: int = 1


def random_model(config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose activations keep their size from layer to layer."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    random = torch.Generator().manual_seed(1)
    tensors = [*model.named_parameters(), *_stored_buffers(model)]
    for name, weight in tensors:
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() == 1:
            weight.data = ((0 if name.endswith("bias") else 1) + 0.1 * draw).to(weight.dtype)
        else:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.tie_weights()
    return model.to(dtype)


def _stored_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that checkpoints have: biases of routers, which are zero in a new model."""
    stored = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in stored]


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


def write(folder: Path, case: Case) -> None:
    """`checkpoint`, in blocks, and `reference`, of the same values in float32."""
    formats = case.formats
    random_model(case.config, case.dtype).save_pretrained(folder / "plain")
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
    case: Case

    @cached_property
    def model(self) -> Model:
        return mxc.load(self.folder / "model.mxc")

    @cached_property
    def tokens(self) -> list[int]:
        random = np.random.default_rng(0)
        return [int(token) for token in random.integers(0, self.case.config.vocab_size, LENGTH)]

    @cached_property
    def reference(self) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / "reference", dtype=torch.float32, attn_implementation="eager"
        )

    def _logits(self, model: Any) -> NDArray[np.float64]:
        with torch.no_grad():
            logits = model(torch.tensor([self.tokens]), use_cache=False).logits
        return logits[0].double().numpy()

    @cached_property
    def wanted(self) -> NDArray[np.float64]:
        """Logits of transformers in float64; the delta rule is float32 there."""
        model = copy.deepcopy(self.reference).double()
        # torch groups products of float32 and less.
        model.set_experts_implementation("eager")
        return self._logits(model)

    @cached_property
    def tolerance(self) -> float:
        """What logits may deviate."""
        rounded = self._logits(self.reference).astype(np.float32)
        return max(TOLERANCE, ROUNDING * self.deviation(rounded, slice(None)))

    def deviation(self, found: NDArray[np.float32], rows: Sequence[int] | slice) -> float:
        """The largest difference of logits, in units of the root mean square of what is wanted."""
        wanted = self.wanted[rows]
        assert found.shape == wanted.shape
        return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)))

    def check_prompt(self) -> None:
        """All tokens in one call, to the last position."""
        logits = self.model.sequence().feed(self.tokens)
        assert self.deviation(logits, slice(None)) <= self.tolerance

    def check_decode(self) -> None:
        """Token by token."""
        sequence = self.model.sequence()
        rows = np.concatenate([sequence.feed([token]) for token in self.tokens])
        assert self.deviation(rows, slice(None)) <= self.tolerance

    def check_greedy(self) -> None:
        """The tokens that transformers chooses, whose decode keeps a cache of its own."""
        prompt = self.tokens[:PROMPT]
        reference, given = self.reference, torch.tensor([prompt])
        wanted = reference.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=GENERATED,
            min_new_tokens=GENERATED,
            do_sample=False,
        )
        sequence = self.model.sequence()
        found, rows = list(prompt), sequence.feed(prompt)
        for _ in range(GENERATED):
            # transformers leaves out the end of a text, of which it wants a number of tokens.
            row = rows[-1].copy()
            row[self.case.config.eos_token_id] = float("-inf")
            found.append(int(row.argmax()))
            rows = sequence.feed(found[-1:])
        assert found == wanted[0].tolist()

    def check_odd_cuts_and_decoded_together(self) -> None:
        """Two sequences, fed in pieces, then decoded together."""
        sequences, starts = [self.model.sequence() for _ in range(BATCH)], (3, 20)
        for sequence, start in zip(sequences, starts, strict=True):
            for first, last in ((0, start // 2), (start // 2, start)):
                found = sequence.feed(self.tokens[first:last])
                assert self.deviation(found, slice(first, last)) <= self.tolerance
        batch = self.model.batch()
        for step in range(4):
            places = [start + step for start in starts]
            found = batch.feed(sequences, [self.tokens[place] for place in places])
            assert self.deviation(found, places) <= self.tolerance


def build(folder: Path, case: Case) -> Built:
    write(folder, case)
    mxc.compile(
        folder / "checkpoint",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=PROMPT + GENERATED,
        devices=case.devices,
    )
    return Built(folder, case)


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
                case = Case(*request.module.CASES[name])
                made[name] = pool.submit(build, tmp_path_factory.mktemp(name), case)
    yield lambda name: made[name].result()
    pool.shutdown(cancel_futures=True)
