"""Logits of checkpoints as they are published, against transformers with the same numbers.

What a weight's bytes mean is written out in stored_weights.py, and checked against
compressed-tensors here; transformers runs the model on these numbers.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from published_checkpoints import PUBLISHED, Published
from published_configs import VOCABULARY
from published_files import reference_logits, write_published
from published_fused import FUSED
from published_gemma4 import GEMMA4
from published_hybrids import HYBRIDS
from published_latent import LATENT
from published_names import NAMES

import mxc
from mxc.artifact.manifest import REPORT, WEIGHTS
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.artifact import Artifact
from mxc.compiler.models.model import open_model
from mxc.targets.amd import GFX1201

#: Share of the root mean square of all logits, or three times what transformers loses in float32.
TOLERANCE, ROUNDING = 2e-5, 3

LENGTH = 11


EVERY = PUBLISHED | HYBRIDS | FUSED | LATENT | GEMMA4


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs/models.md").read_text()
    listed = re.findall(r"^\|[^|]*\| ([\w.-]+/[\w.-]+) \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        {each.model.partition(",")[0] for each in (EVERY | NAMES).values()}
    )


@pytest.mark.parametrize("name", EVERY)
def test_logits(name: str, tmp_path: Path) -> None:
    published = EVERY[name]
    write_published(tmp_path, published)
    artifact = mxc.compile(
        tmp_path / "checkpoint",
        "cpu",
        tmp_path / "model.mxc",
        activations="f32",
        max_sequence_length=LENGTH,
        strict=True,
    )
    assert_packed(artifact, published)
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


#: Whole squares of 128 x 128, of experts too: of which there are several along both dimensions.
_SQUARES = replace(
    PUBLISHED["qwen3-moe-fp8"],
    config={
        **PUBLISHED["qwen3-moe-fp8"].config,
        "hidden_size": 256,
        "moe_intermediate_size": 384,
    },
    packed={
        "self_attn.q_proj|mlp.experts": ("f8E4M3FN with f32 per 128", lambda k: k + k / 128 * 4)
    },
)
ON_GPUS = {
    name: PUBLISHED[name]
    for name in ("redhat-llama-w8a8", "qwen3-fp8", "kimi-int4", "redhat-llama-w4a16")
} | {"nm-llama-w8a16": PUBLISHED["nm-llama-w8a16"], "squares of experts": _SQUARES}


@pytest.mark.parametrize("name", ON_GPUS)
def test_float_scales_on_gfx950(name: str, tmp_path: Path) -> None:
    """Scales of rows, of squares and of groups: weights stay as they are, those of experts too."""
    published, tokens = ON_GPUS[name], [5, 77, 31]
    write_published(tmp_path, published)
    place = tmp_path / "model.mxc"
    artifact = mxc.compile(
        tmp_path / "checkpoint",
        "gfx950",
        place,
        activations="f32",
        max_sequence_length=4,
    )
    # Blocks of which all have the scale one are those of an MX format to a kernel.
    assert_packed(artifact, published, {"i8": "mxint8", "f8E4M3FN": "mxfp8e4m3"})
    wanted = reference_logits(tmp_path, tokens, torch.float64).numpy()
    found = mxc.load(place, device="simulator").sequence().feed(tokens)
    assert np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)) <= TOLERANCE


def test_what_no_kernel_of_gpus_reads_is_said(tmp_path: Path) -> None:
    write_published(tmp_path, PUBLISHED["qwen3-fp8"])
    model = open_model(tmp_path / "checkpoint", unit=GFX1201.matrix)
    why = "kernels for wmma take no f32 scales that differ along a row"
    assert any(f"{why}, so that their numbers are packed as f32" in note for note in model.notes)


def assert_packed(
    artifact: Artifact, published: Published, reported: Mapping[str, str] | None = None
) -> None:
    """Archive, manifest and report have the weights in the formats of the checkpoint.

    `reported`: what the report calls formats, where it is not what the manifest does.
    """
    sizes = {key: e.bytes for key, e in read_archive(artifact.path / WEIGHTS).items()}
    weights = artifact.manifest.weights
    products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
    for pattern, (format, row_bytes) in published.packed.items():
        found = {n: w for n, w in weights.items() if re.match(rf"(.*\.)?({pattern})", n)}
        found = {
            n: w for n, w in found.items() if not n.endswith(("_tensor_scales", "norm.weight"))
        }
        assert found, pattern
        for name, weight in found.items():
            assert weight.format == format, name
            *lead, rows, columns = weight.shape
            parts = [f"{name}{end}" for end in ("_blocks", "_scales", "_tensor_scales")]
            size = sum(sizes[part] for part in parts if part in sizes)
            # Panels have 16 rows.
            whole = -(-rows // 16) * 16 * math.prod(lead) * row_bytes(columns)
            assert 0.98 * whole - 4 * 16 < size <= whole, name
            module = name.removesuffix(".weight")
            own = [each for each in products if each["name"] == module]
            assert {each["rhs"] for each in own} == {(reported or {}).get(format, format)}, name
            assert all(each["reason"] is None and "mxc_" in each["kernel"] for each in own), name
