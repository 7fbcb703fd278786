"""Progress at a terminal: one line that moves, and a line that stays for each step."""

import io
import re
import time

import pytest
from rich.console import Console

from mxc.compiler.cli.progress import counting, showing
from mxc.compiler.steps import CompileStep


def test_progress_at_a_terminal() -> None:
    written = io.StringIO()
    console = Console(force_terminal=True, width=120, file=written)
    with showing(console) as progress:
        progress.step(CompileStep(kind="phase", name="hal"))
        progress.step(CompileStep(kind="phase", name="hal", seconds=1.5))
        progress.step(CompileStep(kind="part", name="packing"))
        for done in range(4):
            progress.packed(done << 20, 4 << 20, "model.layers.10.mlp.experts.gate_up_proj")
            time.sleep(0.2)
        progress.packed(4 << 20, 4 << 20, "lm_head")
        progress.step(CompileStep(kind="part", name="packing", seconds=0.25))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert re.search(r"\r  IREE hal +1\.50 s\n", text)
    assert re.search(r"\r  packing +0\.25 s  4 MiB at .*iB/s\n", text)
    assert text.count("IREE hal ") > 1, "a moving line before it is done"
    moving = re.search(r"0:00:0\d [\d.]+ MiB of 4 MiB at \S+ MiB/s, 0:00:0\d left, (\S+)", text)
    assert moving is not None
    assert moving[1] == "model.layers.10…rts.gate_up_proj"


def test_work_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    terminal = Console(force_terminal=True, width=100, file=written)
    monkeypatch.setattr("mxc.compiler.cli.progress.Console", lambda **_: terminal)
    with counting("evaluate", tokens=True) as advance:
        for done in range(4):
            advance(1000 * done, 4000, "")
            time.sleep(0.2)
    assert re.search(r"evaluate .*3,000 of 4,000 tokens at .*/s, 0:00:0\d left", written.getvalue())
