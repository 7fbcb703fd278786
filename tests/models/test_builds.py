"""Two builds of one checkpoint are the same to the byte, but for how long they took."""

import json
import re
from pathlib import Path

import pytest

import mxc
from mxc.artifact.manifest import MANIFEST, MODULE, WEIGHTS
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from tests import kept_code

REPORT = "report.json"


def test_two_builds_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With int8 activations, weights in blocks of 4 and 8 bits, and plain ones."""
    monkeypatch.delenv(kept_code.FOLDER, raising=False)
    checkpoint = tmp_path / "checkpoint"
    write_gpt_oss(checkpoint, GptOssOptions(num_hidden_layers=1), seed=3, tokenizer=False)
    builds = []
    for name in ("first", "second"):
        mxc.compile(
            checkpoint,
            "cpu",
            tmp_path / name,
            activations="i8",
            quantize_dense="mxint8",
            max_sequence_length=32,
            cache=False,
        )
        files = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        files[REPORT] = re.sub(rb'"seconds": [0-9.e-]+', b"", files[REPORT])
        manifest = json.loads(files[MANIFEST])
        # The digest of the report, which says how long each step took.
        del manifest["files"][REPORT]
        files[MANIFEST] = json.dumps(manifest).encode()
        builds.append(files)
    first, second = builds
    assert first.keys() == second.keys() >= {MODULE, WEIGHTS, MANIFEST, REPORT}
    assert [name for name in first if first[name] != second[name]] == []
