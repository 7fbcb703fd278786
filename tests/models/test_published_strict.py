"""Stored forms of published checkpoints with --strict: each has a kernel of ours, in registers.

The kernels are those that users get. test_published.py compiles its many programs with small tiles
and without assembly, so that nothing is said of their registers there.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import mxc
from tests.models.published_checkpoints import PUBLISHED
from tests.models.published_files import write_published
from tests.models.published_forms import FORMS, one_form_a_projection

_SIZES = {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 512}
CHECKPOINTS = {
    "one form a projection": one_form_a_projection(512),
    "squares, of experts too": replace(
        PUBLISHED["qwen3-moe-fp8"],
        config={**PUBLISHED["qwen3-moe-fp8"].config, **_SIZES},
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_strict(name: str, tmp_path: Path) -> None:
    write_published(tmp_path, CHECKPOINTS[name])
    built = mxc.compile(
        tmp_path / "checkpoint", "cpu", tmp_path / "model.mxc", weights="none", strict=True
    )
    read = {weight.format for weight in built.manifest.weights.values()} - {"bf16", "f32"}
    assert len(read) == (len(FORMS) if name == "one form a projection" else 2), read
