"""A model for two levels of CPU features in one artifact, its weights there once."""

from pathlib import Path

import numpy as np
import pytest

import mxc
from mxc.artifact.manifest import MODULE, WEIGHTS
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss

OPTIONS = GptOssOptions(num_hidden_layers=1, vocab_size=96)
TARGETS = ["cpu:x86-64-v3", "cpu"]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    write_gpt_oss(folder / "checkpoint", OPTIONS, tokenizer=False)
    return mxc.compile(
        folder / "checkpoint",
        TARGETS,
        folder / "both.mxc",
        activations="f32",
        max_sequence_length=16,
        listing=False,
    ).path


def test_every_level_computes_the_model(artifact: Path) -> None:
    logits = {}
    for level in (None, "cpu", "x86-64-v3"):
        model = mxc.load(artifact, level=level)
        assert model.level == (level or "cpu")
        sequence = model.sequence()
        logits[level] = np.concatenate([sequence.feed(TOKENS), sequence.feed([7])])
    assert np.array_equal(logits[None], logits["cpu"])
    assert np.abs(logits["cpu"]).max() > 0.1
    # In f32 they differ in the order of the sums.
    np.testing.assert_allclose(logits["cpu"], logits["x86-64-v3"], rtol=0, atol=1e-4)


def test_a_weight_is_there_once_for_each_layout(artifact: Path) -> None:
    manifest = mxc.load(artifact).manifest
    first, second = (manifest.at(level).weights for level in manifest.levels)
    differ = {name for name in first if first[name] != second[name]}
    assert set(manifest.levels["cpu"].layouts) == differ
    assert not manifest.levels["x86-64-v3"].layouts
    archives = {archive for level in manifest.levels.values() for archive in level.archives}
    assert WEIGHTS in archives
    assert (archives == {WEIGHTS}) == (not differ)
    modules = [manifest.files[level.module] for level in manifest.levels.values()]
    assert modules[0] != modules[1]
    assert MODULE not in manifest.files
