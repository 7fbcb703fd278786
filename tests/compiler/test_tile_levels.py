"""A level on tiles of AMX beside one without: what they share, and what runs where."""

import subprocess
import sys

import numpy as np
import pytest

import mxc
from mxc.compiler.artifact import Artifact
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.runtime.levels import obstacles

TILES, VECTORS = "sapphirerapids", "x86-64-v3"
PROMPT = "3,4,5,6,7,8,9"

#: Linux gives no tiles to a process with a stack for signals that is too small for them: 4 KiB.
REFUSED = """
import ctypes, sys
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(1 << 16)
stack = Stack(ctypes.addressof(memory), 0, 4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from mxc.compiler.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("tiles")
    write_gpt_oss(folder / "checkpoint", GptOssOptions(num_hidden_layers=1))
    return mxc.compile(
        folder / "checkpoint",
        [f"cpu:{TILES}", f"cpu:{VECTORS}"],
        folder / "model.mxc",
        max_sequence_length=16,
        strict=True,
    )


def refused(made: Artifact, *words: str) -> subprocess.CompletedProcess[str]:
    """`mxc generate` in a process that gets no tiles."""
    command = ["generate", str(made.path), "--prompt-tokens", PROMPT, "--max-new-tokens", "2"]
    return subprocess.run(
        [sys.executable, "-c", REFUSED, *command, *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_levels_with_and_without_tiles_share_their_weights(made: Artifact) -> None:
    tiles, vectors = (made.manifest.levels[name] for name in (TILES, VECTORS))
    assert {"amx-tile", "amx-bf16"} <= set(tiles.target.features)
    assert not [feature for feature in vectors.target.features if feature.startswith("amx")]
    assert tiles.archives == vectors.archives
    assert tiles.layouts == {}
    assert vectors.layouts == {}


def test_the_best_that_may_run_does(made: Artifact) -> None:
    model = mxc.load(made.path)
    assert model.level == (VECTORS if obstacles(made.manifest)[TILES] else TILES)
    tokens = [int(token) for token in PROMPT.split(",")]
    one = model.sequence().feed(tokens)
    other = mxc.load(made.path, level=VECTORS).sequence().feed(tokens)
    # Activations are rounded to bf16 by both; only the order of sums differs.
    assert np.abs(one - other).max() <= 2e-2 * np.abs(other).max()
    assert one.argmax() == other.argmax()


def test_without_permission_the_next_level_runs_and_a_line_says_so(made: Artifact) -> None:
    result = refused(made)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"note: level {VECTORS} runs: {TILES} uses amx-")
    forced = refused(made, "--level", TILES)
    assert forced.returncode == 1
    assert f"level {TILES} uses amx-" in forced.stderr
    assert "leave --level out, or compile the model with --target cpu" in forced.stderr
