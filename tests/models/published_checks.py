"""What is checked of published checkpoints.

Of each config one is computed: logits, and the tokens that it chooses. Another checkpoint of the
same config is the same model, if the numbers that are packed of it are those of its weights
under the names of transformers. Kernels of the formats do not differ by model: each form in which
weights are stored, of experts too, is that of a checkpoint that is computed.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mxc.artifact.manifest import REPORT, WEIGHTS, WeightRecord
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.artifact import Artifact
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.models.model import BoundModel, open_model
from tests.models.compared import Built, compile_small
from tests.models.packed_numbers import numbers as packed_numbers
from tests.models.published_checkpoints import PUBLISHED, Published
from tests.models.published_files import Numbers, write_published
from tests.models.published_fused import FUSED
from tests.models.published_gemma4 import GEMMA4
from tests.models.published_hybrids import HYBRIDS
from tests.models.published_latent import LATENT
from tests.models.published_names import NAMES

EVERY = PUBLISHED | HYBRIDS | FUSED | LATENT | GEMMA4 | NAMES


#: A checkpoint of which only the numbers are compared -> the one of its config that is computed.
SAME_CONFIG = {
    "redhat-llama-nvfp4": "amd-llama-mxfp4",
    "nvidia-llama-nvfp4": "amd-llama-mxfp4",
    "redhat-llama-fp8": "amd-llama-mxfp4",
    "redhat-llama-w4a16": "amd-llama-mxfp4",
    "redhat-llama-w8a8": "amd-llama-mxfp4",
    "nm-llama-w8a16": "amd-llama-mxfp4",
    "redhat-qwen3-nvfp4": "qwen3-fp8",
    "amd-qwen3-moe-mxfp4": "qwen3-moe-fp8",
    "nvidia-qwen3-moe-nvfp4": "qwen3-moe-fp8",
    "nm-qwen3-moe-mxfp4a16": "qwen3-moe-fp8",
    "kimi-int4": "qwen3-moe-fp8",
    "nvidia-qwen2.5-vl-nvfp4": "redhat-qwen2.5-vl-fp8",
    "nvidia-qwen3.5-moe": "amd-qwen3.5-moe",
    "deepseek-v3-fp8": "amd-deepseek-r1-mxfp4",
    "nvidia-gemma4": "redhat-gemma4",
    "nvidia-gemma4-experts": "redhat-gemma4-fp8-experts",
    "nvidia-gemma3-nvfp4": "redhat-gemma3-fp8",
    "minimax-m2-fp8": "nvidia-minimax-nvfp4",
    "redhat-mixtral-fp8": "nvidia-mixtral-nvfp4",
}
COMPUTED = [name for name in EVERY if name not in SAME_CONFIG]


def _check_read(folder: Path, published: Published) -> BoundModel:
    """Write the checkpoint: its weights are read as their numbers."""
    stored = write_published(folder, published)
    source = open_checkpoint(folder / "checkpoint")
    assert stored or not published.stores
    for key, numbers in stored.items():
        # Of nvfp4 the product with the scale of the tensor is rounded twice.
        np.testing.assert_allclose(source.tensor(key).values(), numbers, 3e-7, err_msg=key)
    model = open_model(folder / "checkpoint", activations="f32")
    decoded = [each for each in model.bound if each.decoded is not None]
    assert bool(decoded) == any("packed as" in note for note in published.notes)
    return model


def check_packed(folder: Path, published: Published) -> None:
    """The numbers that are packed are those of plain weights under the names of transformers."""
    model = _check_read(folder, published)
    found, wanted = (packed_numbers(each) for each in (model, open_model(folder / "reference")))
    assert found.keys() == wanted.keys()
    for key, numbers in wanted.items():
        np.testing.assert_allclose(found[key], numbers, 3e-7, err_msg=key)
    sizes = {item.key: item.bytes for item in model.pack_items({})}
    _formats(published, model.weights({}), sizes)
    _assert_notes(published, model.notes)


def check_published(folder: Path, published: Published) -> None:
    """What is packed of its weights, and what is computed with them."""
    _check_read(folder, published)
    artifact = compile_small(folder / "checkpoint", folder / "model.mxc")
    products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
    assert [each for each in products if not each["kernel"].startswith("mxc_")] == []
    assert_packed(artifact, published)
    _assert_notes(published, artifact.manifest.notes)
    found = Built(artifact.path, Numbers(folder))
    found.check_generated()
    found.check(found.model.sequence().feed(found.tokens))
    found.check_cut()
    found.check_fork()


def _assert_notes(published: Published, notes: Sequence[str]) -> None:
    for pattern in published.notes:
        assert any(re.search(pattern, note) for note in notes), pattern


def assert_packed(
    artifact: Artifact, published: Published, reported: Mapping[str, str] | None = None
) -> None:
    """Archive, manifest and report have the weights in the formats of the checkpoint.

    `reported`: what the report calls formats, where it is not what the manifest does.
    """
    sizes = {key: e.bytes for key, e in read_archive(artifact.path / WEIGHTS).items()}
    products = json.loads((artifact.path / REPORT).read_text())["matmuls"]
    for name, format in _formats(published, artifact.manifest.weights, sizes).items():
        module = name.removesuffix(".weight")
        own = [each for each in products if each["name"] == module]
        assert {each["rhs"] for each in own} == {(reported or {}).get(format, format)}, name
        assert all(each["reason"] is None and "mxc_" in each["kernel"] for each in own), name


def _formats(
    published: Published, weights: Mapping[str, WeightRecord], sizes: Mapping[str, int]
) -> dict[str, str]:
    """The formats that the checkpoint says of weights, which have these bytes."""
    formats: dict[str, str] = {}
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
            formats[name] = format
    return formats
