"""NaN stays with the tokens that met it: not with those before it, nor with others' pages."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss

#: A token of the text without an embedding but NaN.
POISON = 77


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for which one token has no embedding but NaN."""
    folder = tmp_path_factory.mktemp("nan")
    options = GptOssOptions(vocab_size=300, dense_dtype="F32", sliding_window=6)
    write_gpt_oss(folder / "checkpoint", options, shards=1, tokenizer=False)
    file = folder / "checkpoint" / "model.safetensors"
    tensors = dict(load_file(file))
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    save_file(tensors, file, metadata={"format": "pt"})
    mxc.compile(
        folder / "checkpoint",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=48,
        listing=False,
    )
    return folder / "model.mxc"


def test_what_a_page_held_is_never_seen(poisoned: Path) -> None:
    """A sequence of NaN is forgotten; the next one has its page."""
    text = np.random.default_rng(0).integers(100, 300, 30).tolist()
    model = mxc.load(poisoned)
    sequence = model.sequence()
    assert np.isnan(sequence.feed([POISON] * 40)).all()
    assert np.isnan(sequence.pages().astype(np.float32)).any()
    sequence.reset()
    rows = np.concatenate([sequence.feed(text[:25]), *(sequence.feed([t]) for t in text[25:])])
    assert np.isfinite(rows).all()
    assert np.isnan(sequence.pages().astype(np.float32)).any()


def test_a_token_spoils_what_comes_after_it_alone(poisoned: Path) -> None:
    text = np.random.default_rng(1).integers(100, 300, 16).tolist()
    clean = mxc.load(poisoned).sequence().feed(text)
    rows = mxc.load(poisoned).sequence().feed([*text[:9], POISON, *text[10:]])
    np.testing.assert_array_equal(rows[:9], clean[:9])
    assert np.isnan(rows[9:]).all()


def test_a_neighbour_of_nan_has_the_same_bits(poisoned: Path) -> None:
    model = mxc.load(poisoned)

    def rows(first: int) -> NDArray[np.float32]:
        sequences = [model.sequence() for _ in range(3)]
        steps = [model.batch().feed(sequences, [150, first, 160])]
        steps += [model.batch().feed(sequences, [t, t + 9, t + 5]) for t in range(100, 104)]
        return np.stack(steps, axis=1)

    clean, spoiled = rows(170), rows(POISON)
    assert np.isnan(spoiled[1]).all()
    assert np.isfinite(clean).all()
    assert np.array_equal(spoiled[[0, 2]], clean[[0, 2]])
