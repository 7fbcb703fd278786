"""Logits of published checkpoints with experts, other attention or other names."""

from pathlib import Path

import pytest

from tests.models.published_checkpoints import PUBLISHED
from tests.models.published_checks import COMPUTED, EVERY, check_published
from tests.models.published_fused import FUSED


@pytest.mark.parametrize("name", [name for name in COMPUTED if name not in PUBLISHED | FUSED])
def test_logits(name: str, tmp_path: Path) -> None:
    check_published(tmp_path, EVERY[name])
