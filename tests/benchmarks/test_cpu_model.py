"""The benchmarks of whole models: tiny ones without the peer, and what is computed about them."""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scaling
from artifacts import Built, bits, bytes_per_token
from ggml import MISSING
from gguf_model import Tensor, draw, tensors
from model import Best, checks, dimensions
from scaling import Line, Setting, settings

from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.compiler.checkpoints.synthetic.gpt_oss_shapes import stored_shapes

Run = Callable[..., subprocess.CompletedProcess[str]]

TINY = ("--tiny", "--layers", "1", "--quantize-dense", "none", "--generate", "2", "--rounds", "1")
SMALL = ("--", "--strict")


@pytest.mark.parametrize(
    ("script", "words"), [("model.py", ()), ("scaling.py", ()), ("llama.py", ("none.gguf",))]
)
def test_a_missing_peer_is_said_in_a_line(script: str, words: tuple[str, ...], run: Run) -> None:
    result = run(script, *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == MISSING + "\n"


def test_a_model_is_compiled_and_measured(run: Run, tmp_path: Path) -> None:
    words = ("--no-peer", "--activations", "f32", "--prompts", "5", "--threads", "1", "--json")
    result = run("model.py", *TINY, *words, "--folder", str(tmp_path), *SMALL)
    found = json.loads(result.stdout)
    assert found["peer"] is None
    assert found["ours"]["f32"]["prompt"]["5"] > 0
    assert found["ours"]["f32"]["generate"] > 0
    assert found["built"]["f32"]["compile_seconds"] > found["built"]["f32"]["packing_seconds"]
    names = [check["name"].partition(",")[0] for check in found["checks"]]
    assert names == ["f32: generation", "f32: compile"]
    assert result.returncode == (not all(check["passes"] for check in found["checks"]))
    assert not list(tmp_path.iterdir())


def test_what_the_compiler_refuses_is_shown(run: Run) -> None:
    result = run("model.py", *TINY, "--no-peer", "--activations", "f99", "--prompts", "5")
    assert result.returncode == 1
    assert "f99" in result.stderr


def test_lines_of_scaling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line a setting, with the best of its rounds."""
    rates = iter(range(100))

    def compiled(checkpoint: Path, output: Path, *rest: object) -> Built:
        assert (checkpoint / "config.json").is_file()
        words = ["--max-sequence-length", "34", "--strict"]
        assert rest == ("bf16", None, words)
        return Built(output, 1.0, 1.0, 1)

    def measured(artifact: Path, *rest: int) -> dict[str, float]:
        return {"prompt_tokens_per_second": next(rates), "generate_tokens_per_second": -rest[0]}

    monkeypatch.setattr(scaling, "compile_model", compiled)
    monkeypatch.setattr(scaling, "bench_model", measured)
    words = ["--no-peer", *TINY, "--lengths", "3", "--batches", "1,2", "--threads", "1"]
    options = scaling.parse([*words, "--rounds", "2", *SMALL])
    assert list(scaling.measure(options, tmp_path)) == [
        Line(1, 3, 1, 1, -3, None, None),
        Line(1, 32, 1, 3, -32, None, None),
        Line(1, 32, 2, 5, -32, None, None),
    ]


def test_settings() -> None:
    assert settings([1, 2], [128], [4]) == [
        Setting(1, 128), Setting(2, 128), Setting(1, 32, 4), Setting(2, 32, 4),
    ]  # fmt: skip


def test_both_models_have_the_same_matrices(tmp_path: Path) -> None:
    shape = dimensions(2, tiny=True)
    config = write_gpt_oss(tmp_path / "checkpoint", shape, tokenizer=False, headers_only=True)
    ours = 0
    for name, sizes in stored_shapes(config).items():
        elements = math.prod(sizes) * (2 if name.endswith("_blocks") else 1)
        ours += 0 if name.endswith("_scales") else elements
    assert sum(math.prod(tensor.shape) for tensor in tensors(shape)) == ours


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("norm", "F32", (96,), mean=1.0),
        Tensor("dense", "Q8_0", (64, 2880)),
        Tensor("experts", "MXFP4", (2, 32, 2880)),
    ],
    ids=lambda tensor: tensor.kind,
)
def test_random_tensors(tensor: Tensor) -> None:
    """Read by the definition of their blocks, they keep the size of what they multiply."""
    data = draw(tensor, np.random.default_rng(0))
    assert data.nbytes == tensor.bytes
    if tensor.kind == "F32":
        assert abs(data.mean() - 1) < 0.1
        return
    blocks = data.reshape(-1, {"Q8_0": 34, "MXFP4": 17}[tensor.kind])
    if tensor.kind == "Q8_0":
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float64)
        values = scales * blocks[:, 2:].copy().view(np.int8)
    else:
        e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
        values = e2m1[codes & 7] * 2.0 ** (blocks[:, :1].astype(int) - 127)
    gain = math.sqrt((values**2).mean() * tensor.shape[-1])
    assert 0.5 < gain < 2


def test_bytes_of_a_token() -> None:
    assert (bits("bf16"), bits("mxfp4"), bits("mxint8")) == (16, 4.25, 8.25)
    weights = {
        "model.embed_tokens": {"shape": [1000, 64], "format": "bf16"},
        "layers.0.mlp.experts.down_proj": {"shape": [8, 64, 64], "format": "mxfp4"},
        "layers.0.self_attn.q_proj": {"shape": [64, 64], "format": "mxint8"},
    }
    assert bytes_per_token(weights, 2, 8) == 2 * 64 * 64 * 17 // 32 + 64 * 64 * 33 // 32


def test_what_is_wanted_of_a_model() -> None:
    built = Built(Path("m.mxc"), compile_seconds=20, packing_seconds=50, bytes_per_token=10**8)
    ours = Best({128: 900.0}, generations=[380.0], memory=5)
    peer = Best({128: 300.0}, generations=[100.0], memory=5)
    found = checks("bf16", built, ours, peer, dram=40.0)
    assert len(found) == 5
    assert all(check.passes for check in found)
    assert [check.passes for check in checks("bf16", built, ours, peer, dram=45.0)].count(
        False
    ) == 1
    worse = [
        (replace(ours, prompt={128: 899.0}), built),
        (replace(ours, memory=6), built),
        (ours, replace(built, compile_seconds=31)),
    ]
    for best, artifact in worse:
        assert [c.passes for c in checks("", artifact, best, peer, 40.0)].count(False) == 1
    slow = replace(ours, generations=[99.0])
    assert [c.passes for c in checks("", built, slow, peer, 1.0)].count(False) == 1
    assert len(checks("", built, ours, None, 40.0)) == 2


def test_the_best_of_several_runs() -> None:
    best = Best()
    best.add(128, 10.0, 3.0, 100)
    best.add(128, 9.0, 4.0, 90)
    best.add(512, 8.0, 2.0, 120)
    assert best == Best({128: 10.0, 512: 8.0}, [3.0, 4.0, 2.0], 120)
    assert best.generate == 4.0
