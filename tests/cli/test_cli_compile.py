"""The options of mxc compile, inspect, opt and demo reach what does the work, under their names."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mxc.compiler.cli import app


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command was called with, by the name of its module."""
    seen: dict[str, Any] = {}
    for module in ("cli.compile", "cli.inspect", "cli.demo", "opt"):

        def command(*arguments: object, _module: str = module, **options: object) -> int:
            seen[_module] = (arguments, options)
            return 3

        monkeypatch.setattr(f"mxc.compiler.{module}.command", command)
    return seen


def test_compile(given: dict[str, Any]) -> None:
    words = "compile in.d --target gfx950 -o out.mxc --max-sequence-length 64 --prefill-chunk 8"
    words += " --activations f32 --weights none --strict --allow-nan-scales --force --dump-ir d"
    assert CliRunner().invoke(app, [*words.split(), "--json"]).exit_code == 0
    assert given["cli.compile"] == (
        (Path("in.d"),),
        {
            "target": "gfx950",
            "output": Path("out.mxc"),
            "max_sequence_length": 64,
            "prefill_chunk": 8,
            "activations": "f32",
            "weights": "none",
            "strict": True,
            "allow_nan_scales": True,
            "force": True,
            "dump_ir": Path("d"),
            "json": True,
        },
    )


def test_compile_wants_a_target_and_an_output(given: dict[str, Any]) -> None:
    for words in (["--target", "cpu"], ["--output", "o"], ["--target", "cpu", "-o", "o"]):
        result = CliRunner().invoke(app, ["compile", "in.d", *words])
        assert result.exit_code == (0 if len(words) == 4 else 2)
    assert given["cli.compile"][1]["activations"] is None
    assert given["cli.compile"][1]["weights"] == "packed"


def test_inspect_opt_and_demo(given: dict[str, Any]) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["inspect", "m.gguf", "a.b", "--json"]).exit_code == 0
    assert given["cli.inspect"] == ((Path("m.gguf"), "a.b", True), {})
    words = "opt x.mlir --passes a{b=1},c --output y.mlir --split-input-file --verify-diagnostics"
    assert runner.invoke(app, words.split()).exit_code == 3
    assert given["opt"][0] == (Path("x.mlir"),)
    assert given["opt"][1] == {
        "passes": "a{b=1},c",
        "target": None,
        "to": None,
        "output": Path("y.mlir"),
        "split_input_file": True,
        "verify_diagnostics": True,
        "dump_ir": None,
    }
    assert runner.invoke(app, ["demo", "--directory", "d"]).exit_code == 0
    assert given["cli.demo"] == ((Path("d"),), {})
