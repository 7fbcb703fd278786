"""Headers and configs that hypothesis makes up: read or refused, soon, in little memory.

`python benchmarks/fuzz_headers.py` does the same to files by the million.
"""

import json
import random
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_headers import EDGES, damaged, gguf, safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.inspect.statistics import recipe_of, statistics
from mxc.errors import CheckpointError

FEW = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def tried(path: Path) -> bool:
    """Open it and look at every tensor; whether it was read."""
    tracemalloc.start()
    start = time.process_time()
    try:
        for tensor in open_checkpoint(path).tensors.values():
            statistics(tensor)
            recipe_of(tensor)
        read = True
    except CheckpointError:
        read = False
    finally:
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert seconds < 5
    assert peak < 16 << 20
    return read


@FEW
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(["gguf", "safetensors"]))
def test_damaged_files(folder: Path, seed: int, kind: str) -> None:
    rng = random.Random(seed)
    whole = (gguf if kind == "gguf" else safetensors)(rng)
    path = folder / f"a.{kind}"
    path.write_bytes(whole)
    # Of GGUF some are refused as they are: gate of gpt-oss without up.
    assert tried(path) or kind == "gguf"
    path.write_bytes(damaged(whole, rng))
    tried(path)


SIZES = st.one_of(st.integers(-1, 70), st.sampled_from(EDGES), st.just(1.5), st.just("4"))
ENTRIES = st.dictionaries(
    st.sampled_from(["a", "a.weight", "a.weight_scale", "x_blocks", "x_scales", "__metadata__"]),
    st.one_of(
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["U8", "F32", "BF16", "F8_E8M0", "F4", "", 3, None, []]),
                "shape": st.lists(SIZES, max_size=4),
                "data_offsets": st.lists(SIZES, min_size=1, max_size=3),
            }
        ),
        st.none(),
        st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2),
    ),
    max_size=4,
)


@FEW
@given(entries=ENTRIES, size=st.integers(0, 80), length=st.none() | st.sampled_from(EDGES))
def test_headers_of_safetensors(folder: Path, entries: Any, size: int, length: int) -> None:
    text = json.dumps(entries).encode()
    claimed = len(text) if length is None else length
    path = folder / "b.safetensors"
    path.write_bytes(struct.pack("<Q", claimed) + text + bytes(size))
    tried(path)


@FEW
@given(data=st.binary(max_size=200))
def test_gguf_of_any_bytes(folder: Path, data: bytes) -> None:
    path = folder / "c.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + data)
    tried(path)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 1 << 40)
    | st.sampled_from(
        ["fp4", "mx", "per_group", "e8m0", "even", "Linear", "re:.*", "re:(", "*", "fp8", "float",
         "group", "mxfp4-pack-quantized", "NVFP4", "MXFP8", "a", "a.weight", "MXFP4"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["weight", "weights", "dtype", "qscheme", "group_size", "targets", "format", "num_bits",
             "type", "strategy", "ch_axis", "scale_format", "quant_algo", "input_tensors",
             "input_activations", "mx_element_dtype", "bias", "group_0", "MXFP4"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
KEYS = ("global_quant_config", "layer_quant_config", "exclude", "config_groups", "ignore", "format",
        "quant_algo", "group_size", "quantized_layers", "modules_to_not_convert", "fmt",
        "weight_block_size", "activation_scheme", "layer_type_quant_config")  # fmt: skip


@FEW
@given(
    method=st.sampled_from(
        ["quark", "compressed-tensors", "modelopt", "fp8", "mxfp4", "torchao", "gptq", 3, None]
    ),
    config=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5),
    experts=st.sampled_from([None, "fp4", "fp5", 3]),
)
def test_configs(folder: Path, method: str, config: Any, experts: Any) -> None:
    root = folder / "configs"
    root.mkdir(exist_ok=True)
    if not (root / "model.safetensors").exists():
        tensors = {
            "a.weight": np.zeros((4, 32), np.uint8),
            "a.weight_scale": np.zeros((4, 2), np.uint8),
            "b.weight": np.zeros((4, 8), np.float32),
        }
        save_file(tensors, root / "model.safetensors")
    raw = {"quantization_config": {"quant_method": method, **config}, "expert_dtype": experts}
    (root / "config.json").write_text(json.dumps(raw))
    (root / "hf_quant_config.json").write_text(json.dumps({"quantization": config}))
    tried(root)


@FEW
@given(
    weight_map=st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.sampled_from(
            ["model-1.safetensors", "../outside.safetensors", "/outside.safetensors", "..", "", ".",
             "a/../model-1.safetensors", "model-1.safetensors\0", "x" * 5000, 3, None, ["a"]]
        ),
    )
)  # fmt: skip
def test_index_files(folder: Path, weight_map: Any) -> None:
    """No shard outside of the folder is opened, whatever the index calls it."""
    root = folder / "index"
    root.mkdir(exist_ok=True)
    if not (root / "config.json").exists():
        save_file({"a": np.zeros(4)}, root / "model-1.safetensors")
        save_file({"a": np.zeros(4)}, folder / "outside.safetensors")
        (root / "config.json").write_text("{}")
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert tried(root) == (weight_map == {"a": "model-1.safetensors"})
