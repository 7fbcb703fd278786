"""Logits of published checkpoints with experts, other attention or other names."""

from pathlib import Path

import pytest
from published_checks import check_published
from published_gemma4 import GEMMA4
from published_hybrids import HYBRIDS
from published_latent import LATENT
from published_names import NAMES


@pytest.mark.parametrize("name", HYBRIDS | LATENT | GEMMA4 | NAMES)
def test_logits(name: str, tmp_path: Path) -> None:
    check_published(name, tmp_path)
