"""What is checked of a published checkpoint: its numbers, its archive, logits and greedy tokens."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from compared import Built, compile_small
from published_checkpoints import PUBLISHED, Published
from published_files import Numbers, write_published
from published_fused import FUSED
from published_gemma4 import GEMMA4
from published_hybrids import HYBRIDS
from published_latent import LATENT
from published_names import NAMES

from mxc.artifact.manifest import REPORT, WEIGHTS
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.artifact import Artifact
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.models.model import open_model

EVERY = PUBLISHED | HYBRIDS | FUSED | LATENT | GEMMA4 | NAMES


def check_published(name: str, folder: Path) -> None:
    """The numbers of its weights, what is packed of them, and what is computed with them."""
    published = EVERY[name]
    stored = write_published(folder, published)
    source = open_checkpoint(folder / "checkpoint")
    assert stored or not published.stores
    for key, numbers in stored.items():
        # Of nvfp4 the product with the scale of the tensor is rounded twice.
        np.testing.assert_allclose(source.tensor(key).values(), numbers, 3e-7, err_msg=key)
    decoded = [each for each in open_model(folder / "checkpoint").bound if each.decoded is not None]
    assert bool(decoded) == any("packed as" in note for note in published.notes)
    artifact = compile_small(folder / "checkpoint", folder / "model.mxc")
    products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
    assert [each for each in products if not each["kernel"].startswith("mxc_")] == []
    assert_packed(artifact, published)
    for pattern in published.notes:
        assert any(re.search(pattern, note) for note in artifact.manifest.notes), pattern
    found = Built(artifact.path, Numbers(folder))
    found.check_generated()
    found.check(found.model.sequence().feed(found.tokens))
    found.check_cut()
    found.check_fork()


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
