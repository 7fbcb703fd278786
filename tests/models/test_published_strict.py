"""Stored forms of published checkpoints with --strict: each has a kernel of ours, in registers.

The kernels are those that users get. test_published.py compiles its many programs with small tiles
and without assembly, so that nothing is said of their registers there.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from published_checkpoints import PUBLISHED, Published
from published_configs import LLAMA, compressed
from published_files import write_published
from stored_weights import (
    Store,
    compressed_mxfp4,
    compressed_nvfp4,
    fp8_of_rows,
    int4_of_groups,
    int4_of_large_groups,
    int8_of_groups,
    int8_of_rows,
)

import mxc

#: A projection of a layer -> how it is stored, and what the config says of it.
_FORMS: dict[str, tuple[Store, str]] = {
    "q_proj": (compressed_mxfp4, "mxfp4-pack-quantized"),
    "k_proj": (compressed_nvfp4, "nvfp4-pack-quantized"),
    "v_proj": (fp8_of_rows, "float-quantized"),
    "o_proj": (int4_of_groups, "pack-quantized"),
    "gate_proj": (int8_of_groups, "pack-quantized, int8"),
    "up_proj": (int8_of_rows, "int-quantized"),
    "down_proj": (int4_of_large_groups, "pack-quantized, groups of 128"),
}
_SIZES = {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 512}
CHECKPOINTS = {
    "one form a projection": Published(
        model="",
        config={**LLAMA, "hidden_size": 512, "intermediate_size": 1024},
        quantization=compressed(
            {said: [f"re:.*{part}"] for part, (_, said) in _FORMS.items()}, ["lm_head"]
        ),
        stores={f".*{part}": store for part, (store, _) in _FORMS.items()},
    ),
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
    assert len(read) == (len(_FORMS) if name == "one form a projection" else 2), read
