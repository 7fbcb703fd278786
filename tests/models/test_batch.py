"""Sequences that are decoded together: against transformers, and against each alone."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from mxc.compiler.cli import app
from mxc.errors import RequestError
from mxc.runtime import Model
from tests.models.conftest import Compiled

#: Share of the root mean square of all logits, as in test_logits.py.
TOLERANCE = 2e-5

#: Tokens that the sequences begin with, and those that are then decoded together: one sequence
#: is shorter than its window, and one is filled to its last position.
STARTS, STEPS = (3, 29, 17), 4


def _case(activations: str, **more: Any) -> dict[str, Any]:
    return {
        "options": GptOssOptions(vocab_size=257),
        "activations": activations,
        "length": max(STARTS) + STEPS,
        **more,
    }


#: Half of a row of an expert is whole blocks, half of the vocabulary whole rows.
DIVIDED = GptOssOptions(vocab_size=258, intermediate_size=128)
CASES = {
    "f32": _case("f32"),
    "bf16": _case("bf16"),
    "devices": _case("f32", options=DIVIDED, devices=2),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
f32_case = pytest.mark.parametrize("case", [CASES["f32"]], ids=["f32"])
not_rounded = pytest.mark.parametrize(
    "case", [CASES["f32"], CASES["devices"]], ids=["f32", "devices"]
)


def deviation(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, in units of the root mean square of what is wanted."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted.astype(np.float64) ** 2)))


def _together(model: Model, texts: list[list[int]], starts: tuple[int, ...]) -> np.ndarray:
    """Logits [sequences, STEPS, V] of what follows the first `starts` tokens of each text."""
    batch, sequences = model.batch(), [model.sequence() for _ in texts]
    for sequence, text, start in zip(sequences, texts, starts, strict=True):
        sequence.feed(text[:start])
    steps = [
        batch.feed(sequences, [t[s + step] for t, s in zip(texts, starts, strict=True)])
        for step in range(STEPS)
    ]
    assert [sequence.position for sequence in sequences] == [start + STEPS for start in starts]
    return np.stack(steps, axis=1)


@not_rounded
@pytest.mark.parametrize("count", [1, 2, 3])
def test_transformers(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled], count: int
) -> None:
    """The texts are one at different lengths."""
    built = compiled(case)
    found = _together(built.model, [built.tokens] * count, STARTS[:count])
    wanted = np.stack([built.wanted[start : start + STEPS] for start in STARTS[:count]])
    assert deviation(found, wanted) <= TOLERANCE


@each_case
def test_each_is_what_it_is_alone(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """Different texts, to the bit; what is fed afterwards goes on from there."""
    built = compiled(case)
    texts = [built.draw(seed) for seed in range(len(STARTS))]
    alone = []
    for text, start in zip(texts, STARTS, strict=True):
        sequence = built.model.sequence()
        sequence.feed(text[:start])
        tokens = text[start : start + STEPS]
        alone.append(np.concatenate([sequence.feed([token]) for token in tokens]))
    assert np.array_equal(_together(built.model, texts, STARTS), np.stack(alone))


@each_case
def test_the_others_do_not_change_a_bit(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """Other texts, other lengths, other neighbours that choose other experts."""
    built = compiled(case)
    texts = [built.draw(seed) for seed in range(6)]
    one = _together(built.model, texts[:3], STARTS)
    other = _together(built.model, [texts[3], texts[1], texts[5]], (9, STARTS[1], 1))
    assert np.array_equal(one[1], other[1])
    assert not np.array_equal(one[0], other[0])


@not_rounded
def test_together_and_alone_alternate(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """A sequence may leave the others and come back, and be forked."""
    built = compiled(case)
    batch, sequences = built.model.batch(), [built.model.sequence() for _ in range(2)]
    rows = [batch.feed(sequences, [token] * 2)[1] for token in built.tokens[:3]]
    rows += list(sequences[1].feed(built.tokens[3:9]))
    fork = sequences[1].fork()
    rows += [batch.feed([sequences[0], fork, sequences[1]], [5, 6, built.tokens[9]])[2]]
    rows += [batch.feed([sequences[1]], [built.tokens[10]])[0]]
    assert deviation(np.stack(rows), built.wanted[:11]) <= TOLERANCE
    assert [fork.position, sequences[0].position] == [10, 4]


@f32_case
def test_what_cannot_be_fed_is_refused(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    built = compiled(case)
    model = built.model
    batch, sequences = model.batch(), [model.sequence() for _ in range(5)]
    full = model.sequence()
    full.feed(built.tokens)
    stranger = mxc.load(built.artifact).sequence()
    for rows, tokens, said in (
        ([], [], "got no sequences; feed at least one"),
        (sequences[:2], [1], "one token for each of 2 sequences, got 1"),
        ([sequences[0]] * 2, [1, 2], "a sequence is there twice"),
        ([sequences[0], stranger], [1, 2], "sequence 1 is of .*loaded apart"),
        (sequences[:2], [1, 257], "token 257 .*outside of the vocabulary"),
        ([sequences[0], full], [1, 2], "would be 34 tokens long, the artifact holds 33"),
    ):
        with pytest.raises(RequestError, match=said):
            batch.feed(rows, tokens)
    assert [sequence.position for sequence in sequences] == [0] * 5


@f32_case
def test_bench(case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]) -> None:
    """The rate of all is that of each, as often."""
    words = ["bench", str(compiled(case).artifact), "--prompt", "5", "--generate", "3"]
    result = CliRunner().invoke(app, [*words, "--batch", "4", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["batch"] == 4
    each = found["generate_tokens_per_second_each"]
    assert found["generate_tokens_per_second"] == pytest.approx(4 * each)
