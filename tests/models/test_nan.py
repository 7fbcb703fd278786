"""NaN stays with the tokens that met it: not with those before it, nor with the padding's."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss

#: What a padded chunk is filled with, and a token of the text.
PADDING, POISON = 0, 77


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for which the padding token and one other have no embedding but NaN."""
    folder = tmp_path_factory.mktemp("nan")
    options = GptOssOptions(vocab_size=300, dense_dtype="F32", sliding_window=6)
    write_gpt_oss(folder / "checkpoint", options, shards=1, tokenizer=False)
    file = folder / "checkpoint" / "model.safetensors"
    tensors = dict(load_file(file))
    tensors["model.embed_tokens.weight"][[PADDING, POISON]] = np.nan
    save_file(tensors, file, metadata={"format": "pt"})
    mxc.compile(
        folder / "checkpoint",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=48,
        prefill_chunk=16,
    )
    return folder / "model.mxc"


def test_padding_is_never_seen(poisoned: Path) -> None:
    """Twenty tokens are a whole chunk and a padded one; then decoding, over what padding left."""
    text = np.random.default_rng(0).integers(100, 300, 30).tolist()
    sequence = mxc.load(poisoned).sequence()
    rows = np.concatenate([sequence.feed(text[:25]), *(sequence.feed([t]) for t in text[25:])])
    assert np.isfinite(rows).all()


def test_a_token_spoils_what_comes_after_it_alone(poisoned: Path) -> None:
    text = np.random.default_rng(1).integers(100, 300, 16).tolist()
    clean = mxc.load(poisoned).sequence().feed(text)
    rows = mxc.load(poisoned).sequence().feed([*text[:9], POISON, *text[10:]])
    np.testing.assert_array_equal(rows[:9], clean[:9])
    assert np.isnan(rows[9:]).all()
