"""What `mxc run` and `mxc generate` show of kernels on the simulator."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.cli.observation import counted

ADD = """
func.func @main(%a: tensor<70xf32>, %b: tensor<70xf32>) -> tensor<70xf32> {
  %r = arith.addf %a, %b : tensor<70xf32>
  return %r : tensor<70xf32>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "add.mlir").write_text(ADD)
    mxc.compile(folder / "add.mlir", target="gfx950", output=folder / "add.mxc", listing=False)
    np.save(folder / "x.npy", np.arange(70, dtype=np.float32))
    return folder


def run(program: Path, *words: object) -> Result:
    given = ["--input", program / "x.npy"] * 2
    everything = ["run", program / "add.mxc", *given, *words]
    return CliRunner().invoke(app, [str(word) for word in everything])


def column(text: str, head: str) -> str:
    """The number under a head of a table that has one row."""
    lines = [line for line in text.splitlines() if line.strip()]
    at = next(n for n, line in enumerate(lines) if head in line)
    end = lines[at].index(head) + len(head)
    return lines[at + 2][:end].split()[-1]


def test_counts(program: Path) -> None:
    words = ("--count", "--wide", "--output", program / "y.npy")
    result = run(program, "--device", "simulator", *words)
    assert result.exit_code == 0, result.stderr
    np.testing.assert_array_equal(np.load(program / "y.npy"), 2 * np.arange(70))
    # Both operands are read and the result is written once.
    assert column(result.stdout, "read") == str(2 * 70 * 4)
    assert column(result.stdout, "written") == str(70 * 4)
    assert column(result.stdout, "runs") == "1"
    assert int(column(result.stdout, "vector")) > 0


def test_trace_of_the_wave_that_is_asked_for(program: Path) -> None:
    file = program / "trace.txt"
    plain = run(program, "--device", "simulator", "--trace", file)
    assert plain.exit_code == 0, plain.stderr
    head, *lines = file.read_text().splitlines()
    assert re.fullmatch(r"# main_dispatch_0\w*, workgroup size \(\d+, 1, 1\), wave 0", head)
    assert lines[-1].endswith("s_endpgm")
    added = next(line for line in lines if ": v_add_f32" in line or ": v_pk_add_f32" in line)
    assert f"{np.float32(2).view(np.uint32):08x}" in added
    beyond = run(program, "--device", "simulator", "--trace", file, "--wave", "1000")
    assert beyond.exit_code == 1
    assert re.search(r"error: --wave 1000: no dispatch has it, the largest has \d", beyond.stderr)


def test_sanitizer_of_a_clean_program(program: Path) -> None:
    result = run(program, "--device", "simulator", "--sanitize", "--count")
    assert result.exit_code == 0, result.stderr
    assert "the sanitizer found nothing" in result.stdout
    assert column(result.stdout, "runs") == "1"


def test_findings_are_shown_and_refused(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's waits are taken from it, so that it uses what it has not waited for."""
    import mxc.simulator.watch.sanitizer as sanitizer

    monkeypatch.setattr(sanitizer, "waits", lambda _: (63, 7, 15))
    result = run(program, "--device", "simulator", "--sanitize", "--output", tmp_path / "y.npy")
    assert result.exit_code == 1
    assert (tmp_path / "y.npy").is_file()
    assert re.search(r"^ *wait +main_dispatch_0", result.stdout, re.MULTILINE)
    assert re.fullmatch(r"error: the sanitizer reports \d+ places in .*\n", result.stderr)


@pytest.mark.parametrize("device", [[], ["--device", "local-sync"]])
@pytest.mark.parametrize("words", [["--count"], ["--sanitize"], ["--trace", "t.txt"]])
def test_another_device_is_refused(
    plain_artifact: Path, words: list[str], device: list[str]
) -> None:
    result = CliRunner().invoke(app, ["run", str(plain_artifact), *words, *device])
    assert result.exit_code == 1
    assert "they need --device simulator" in result.stderr
    assert result.stderr.count("\n") == 1


def test_options_that_make_no_sense(program: Path) -> None:
    alone = run(program, "--device", "simulator", "--wave", "1")
    assert (alone.exit_code, alone.stderr.count("\n")) == (1, 1)
    assert "--wave is for --trace FILE" in alone.stderr
    unwritable = run(program, "--device", "simulator", "--trace", program / "no" / "t.txt")
    assert "t.txt: cannot be written (No such file or directory)" in unwritable.stderr


def test_generate_in_json(tmp_path: Path) -> None:
    options = GptOssOptions(num_hidden_layers=1, layer_types=("sliding_attention",), vocab_size=512)
    write_gpt_oss(tmp_path / "checkpoint", options)
    artifact = tmp_path / "tiny.mxc"
    mxc.compile(
        tmp_path / "checkpoint",
        target="gfx950",
        output=artifact,
        max_sequence_length=32,
        activations="bf16",
        listing=False,
    )
    words = ["generate", str(artifact), "--device", "simulator", "--prompt-tokens", "7"]
    words += ["--max-new-tokens", "1", "--json", "--count", "--sanitize"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    seen = json.loads(result.stdout)["simulator"]
    assert seen["findings"] == []
    assert "trace" not in seen
    names = [row["kernel"] for row in seen["counts"]]
    assert len(set(names)) == len(names) > 5
    # What joins pieces of attention has no workgroup where there is one.
    assert all(row["waves"] > 0 for row in seen["counts"] if "_merged" not in row["kernel"])
    assert all(row["runs"] > 0 for row in seen["counts"])
    assert sum(row["instructions"].get("vector", 0) for row in seen["counts"]) > 0


def test_counts_that_have_no_room_in_a_table_are_lines() -> None:
    heads = ["runs", "bank\nconflicts", *(f"kind{n}" for n in range(9))]
    rows = [("mxc_bf16_mxfp4_1xDx384x128", [4, 0, *range(1000, 10000, 1000)])]
    for width, table in ((120, True), (80, False)):
        written = io.StringIO()
        console = Console(width=width, file=written)
        console.print(counted(console, "counts", heads, rows))
        text = written.getvalue()
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert all(f"{n:,}" in text for n in rows[0][1] if n)
        assert ("mxc_bf16_mxfp4_1xDx384x128: runs 4, kind0 1,000" in text) != table
