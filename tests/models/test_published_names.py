"""Published checkpoints are read: every tensor, in the format and with the numbers of its library.

Nothing is compiled; test_published.py compares logits of others.
"""

from pathlib import Path

import numpy as np
import pytest
from published_files import write_published
from published_names import NAMES

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.models.model import open_model


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_read(name: str, tmp_path: Path) -> None:
    published = NAMES[name]
    stored = write_published(tmp_path, published)
    source = open_checkpoint(tmp_path / "checkpoint")
    assert stored
    for key, numbers in stored.items():
        # Of nvfp4 the product with the scale of the tensor is rounded twice.
        np.testing.assert_allclose(source.tensor(key).values(), numbers, 3e-7, err_msg=key)
    model = open_model(tmp_path / "checkpoint")
    assert model.decoder.architecture in str(published.config)
    assert [each.key for each in model.bound if each.decoded is not None] == []
