"""Logits of whole models in float32, position by position, against transformers' gpt-oss.

Each case is a small checkpoint in the true format with random weights. Its sequence is as long as
the artifact allows.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from tests.models.conftest import Compiled

#: Share of the root mean square of all logits. transformers' float32 differs from float64 by up to
#: 1e-5 here: random weights of three layers make a thousand of the last bit of a float32.
TOLERANCE = 2e-5

SLIDING, FULL = "sliding_attention", "full_attention"

CASES: dict[str, dict[str, Any]] = {
    # The published proportions: layers in turn, queries in groups, a window shorter than the text.
    "in-turn": {
        "options": GptOssOptions(vocab_size=257),
        "length": 45,
    },
    # One key/value head, float32, one expert a token, YaRN's ramp cut at whole dimensions.
    "one-kv-head": {
        "options": GptOssOptions(
            hidden_size=96,
            intermediate_size=32,
            num_hidden_layers=1,
            num_key_value_heads=1,
            head_dim=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            vocab_size=131,
            sliding_window=5,
            rope_theta=10000.0,
            original_max_position_embeddings=512,
            rope_truncate=True,
            dense_dtype="F32",
        ),
        "length": 41,
    },
    # As many key/value heads as heads, three sliding layers, float16, one table for both ends.
    "all-sliding-tied": {
        "options": GptOssOptions(
            hidden_size=160,
            num_hidden_layers=3,
            num_attention_heads=2,
            head_dim=64,
            num_local_experts=8,
            num_experts_per_tok=4,
            vocab_size=193,
            sliding_window=7,
            layer_types=(SLIDING,) * 3,
            swiglu_limit=1.0,
            tie_word_embeddings=True,
            dense_dtype="F16",
        ),
        "length": 33,
        "seed": 1,
    },
    # Every expert chosen, no biases in attention, and one chunk as long as a sequence can be: two
    # full groups of 16 rows an expert, and one of a single row.
    "every-expert": {
        "options": GptOssOptions(
            hidden_size=32,
            intermediate_size=96,
            num_attention_heads=6,
            head_dim=16,
            num_local_experts=3,
            num_experts_per_tok=3,
            vocab_size=101,
            layer_types=(FULL, FULL),
            attention_bias=False,
            rope_key="rope_parameters",
        ),
        "length": 33,
    },
    # Most positions lie beyond the context that was trained; a window that nothing is outside of.
    "beyond-training": {
        "options": GptOssOptions(
            hidden_size=128,
            num_attention_heads=3,
            num_key_value_heads=3,
            num_local_experts=5,
            num_experts_per_tok=3,
            vocab_size=149,
            sliding_window=1000,
            rope_theta=100.0,
            rope_factor=4.0,
            original_max_position_embeddings=16,
        ),
        "length": 70,
    },
    # A chunk is one token, a window is one token, and the clamps of the activation are reached.
    "one-by-one": {
        "options": GptOssOptions(
            hidden_size=64,
            intermediate_size=160,
            num_attention_heads=8,
            head_dim=16,
            num_local_experts=7,
            vocab_size=77,
            sliding_window=1,
            layer_types=(FULL, SLIDING),
            swiglu_limit=0.5,
            rms_norm_eps=0.01,
        ),
        "length": 24,
    },
    # One expert that every token takes.
    "one-expert": {
        "options": GptOssOptions(
            num_hidden_layers=1,
            num_local_experts=1,
            num_experts_per_tok=1,
            vocab_size=67,
        ),
        "length": 20,
    },
}
for _case in CASES.values():
    _case["activations"] = "f32"

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def deviation(found: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    """The largest difference, in units of the root mean square of what is wanted."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)))


@each_case
def test_reference_has_the_weights_of_the_file(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """transformers dequantizes through bfloat16; here nothing is lost by it."""
    built = compiled(case)
    ours: dict[str, torch.Tensor] = {}
    for file in built.checkpoint.glob("*.safetensors"):
        ours |= load_file(file)
    theirs = dict(built.reference.named_parameters(remove_duplicate=False))
    assert {name.removesuffix("_blocks").removesuffix("_scales") for name in ours} | (
        {"lm_head.weight"} if case["options"].tie_word_embeddings else set()
    ) == set(theirs)
    for name, tensor in ours.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            assert torch.equal(theirs[name], tensor.float()), name
            continue
        stem = name.removesuffix("_blocks")
        codes = tensor.numpy()
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn)
        scales = ours[f"{stem}_scales"].numpy().view(ml_dtypes.float8_e8m0fnu)
        values = pairs.astype(np.float64) * scales.astype(np.float64)[..., None, None]
        values = values.reshape(*codes.shape[:2], -1).transpose(0, 2, 1)
        assert np.array_equal(theirs[stem].detach().numpy(), values), name
    if case["options"].tie_word_embeddings:
        assert torch.equal(theirs["lm_head.weight"], theirs["model.embed_tokens.weight"])


@each_case
def test_prompt(case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]) -> None:
    """All tokens in one call, up to the last position."""
    built = compiled(case)
    sequence = built.model.sequence()
    assert deviation(sequence.feed(built.tokens), built.wanted) <= TOLERANCE
    assert sequence.remaining == 0


@each_case
def test_decode(case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]) -> None:
    built = compiled(case)
    sequence = built.model.sequence()
    rows = [sequence.feed([token]) for token in built.tokens]
    found = np.concatenate(rows)
    assert deviation(found, built.wanted) <= TOLERANCE
    # What a token is does not depend on the call that computed it.
    assert np.array_equal(found, built.model.sequence().feed(built.tokens))


@each_case
def test_odd_cuts(case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]) -> None:
    """Pieces of all lengths, of some the last row alone: the bits of all in one call."""
    built = compiled(case)
    rng = np.random.default_rng(1)
    sequence, start, rows = built.model.sequence(), 0, []
    places: list[int] = []
    while start < built.length:
        size = min(int(rng.integers(1, built.length // 2 + 2)), built.length - start)
        last_only = bool(rng.integers(2))
        rows.append(sequence.feed(built.tokens[start : start + size], last_only=last_only))
        start += size
        places += [start - 1] if last_only else range(start - size, start)
    assert len(rows) > 1
    found = np.concatenate(rows)
    assert deviation(found, built.wanted[places]) <= TOLERANCE
    assert np.array_equal(found, built.model.sequence().feed(built.tokens)[places])


@each_case
def test_sequences_do_not_touch_each_other(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """Interleaved, after a reset, and forked: the bits of a sequence that is alone."""
    built = compiled(case)
    texts = [built.draw(seed) for seed in range(3)]
    alone = []
    for text in texts:
        sequence = built.model.sequence()
        alone.append(np.concatenate([sequence.feed(text[:9]), sequence.feed(text[9:])]))
    sequences = [built.model.sequence() for _ in texts]
    parts = [[s.feed(t[:9])] for s, t in zip(sequences, texts, strict=True)]
    forks = [sequence.fork() for sequence in sequences]
    for sequence, text, part in zip(sequences, texts, parts, strict=True):
        part.append(sequence.feed(text[9:]))
    for part, rows in zip(parts, alone, strict=True):
        assert np.array_equal(np.concatenate(part), rows)
    # What a full cache held is in sight of nobody.
    sequences[0].reset()
    again = [sequences[0].feed(texts[1][:9]), sequences[0].feed(texts[1][9:])]
    assert np.array_equal(np.concatenate(again), alone[1])
    assert np.array_equal(forks[2].feed(texts[2][9:]), alone[2][9:])


@each_case
def test_threads_do_not_change_a_bit(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    built = compiled(case)
    rows = []
    for threads in (1, 2, 3):
        sequence = mxc.load(built.artifact, threads=threads).sequence()
        head, tail = built.tokens[:-2], built.tokens[-2:]
        rows.append([sequence.feed(head), *(sequence.feed([token]) for token in tail)])
    for one, *others in zip(*rows, strict=True):
        assert all(np.array_equal(one, other) for other in others)
