"""Progress at a terminal: one line that moves, and a line that stays for each step."""

import io
import re

from rich.console import Console

from mxc.compiler.cli.progress import showing
from mxc.compiler.steps import CompileStep


def test_progress_at_a_terminal() -> None:
    written = io.StringIO()
    console = Console(force_terminal=True, width=80, file=written)
    with showing(console) as progress:
        progress.step(CompileStep(kind="phase", name="hal"))
        progress.step(CompileStep(kind="phase", name="hal", seconds=1.5))
        progress.step(CompileStep(kind="part", name="packing"))
        progress.packed(1 << 20, 4 << 20, "model.embed")
        progress.packed(4 << 20, 4 << 20, "lm_head")
        progress.step(CompileStep(kind="part", name="packing", seconds=0.25))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert re.search(r"\r  IREE hal +1\.50 s\n", text)
    assert re.search(r"\r  packing +0\.25 s  4 MiB at .*iB/s\n", text)
    assert text.count("IREE hal ") > 1, "a moving line before it is done"
