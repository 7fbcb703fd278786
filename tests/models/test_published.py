"""Logits of checkpoints as they are published, against transformers with the same numbers.

What a weight's bytes mean is written out in stored_weights.py, and checked against
compressed-tensors here; transformers runs the model on these numbers.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from published_checkpoints import PUBLISHED, reference_logits, write_published
from published_configs import VOCABULARY

import mxc

#: Of the root mean square of all logits, or three times what transformers loses in float32.
TOLERANCE, ROUNDING = 2e-5, 3

LENGTH, CHUNK = 11, 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    write_published(tmp_path, published)
    artifact = mxc.compile(
        tmp_path / "checkpoint",
        "cpu",
        tmp_path / "model.mxc",
        activations="f32",
        max_sequence_length=LENGTH,
        prefill_chunk=CHUNK,
    )
    for pattern in published.notes:
        assert any(re.search(pattern, note) for note in artifact.manifest.notes), pattern
    # Those from 130 on stand for images.
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, VOCABULARY - 9, LENGTH)]
    exact, rounded = (
        reference_logits(tmp_path, tokens, dtype).numpy()
        for dtype in (torch.float64, torch.float32)
    )
    size = np.sqrt(np.mean(exact**2))
    bound = max(TOLERANCE, ROUNDING * float(np.abs(rounded - exact).max() / size))
    found = mxc.load(tmp_path / "model.mxc").sequence().feed(tokens)
    assert np.abs(found - exact).max() / size <= bound
