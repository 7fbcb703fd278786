"""`mxc demo`: compiles a small random checkpoint, generates, and prints the report."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from mxc.compiler import compilation
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli.compile import show_artifact
from mxc.compiler.cli.generate import command as generate
from mxc.compiler.cli.progress import showing
from mxc.compiler.cli.signals import ending_cleanly

PROMPT = "Which numbers can four bits hold?"

#: Small, with every kind of part: sliding and full layers, grouped queries, and more experts than
#: are chosen per token.
OPTIONS = GptOssOptions(
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    num_local_experts=8,
    num_experts_per_tok=4,
    vocab_size=484,
    sliding_window=32,
)


def command(directory: Path | None, *, wide: bool = False) -> None:
    """Write a checkpoint, compile it for this CPU, generate, and show the report.

    Files are written to `directory`, or to a temporary folder that is removed at the end.
    """
    with ending_cleanly():
        if directory is not None:
            _show(directory, wide=wide)
            return
        folder = Path(tempfile.mkdtemp(prefix="mxc-demo-"))
        try:
            _show(folder, wide=wide)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _show(folder: Path, *, wide: bool) -> None:
    checkpoint, output = folder / "gpt-oss-tiny", folder / "gpt-oss-tiny.mxc"
    print(f"writing a small random gpt-oss checkpoint to {checkpoint}", flush=True)
    write_gpt_oss(checkpoint, OPTIONS)
    options = "--target cpu --max-sequence-length 256 --force"
    print(f"$ mxc compile {checkpoint} {options} --output {output}", flush=True)
    with showing(Console(stderr=True)) as progress:
        artifact = compilation.compile(
            checkpoint, "cpu", output, max_sequence_length=256, force=True, progress=progress
        )
    print(f'$ mxc generate {output} --prompt "{PROMPT}" --max-new-tokens 32', flush=True)
    generate(output, prompt=PROMPT, max_new_tokens=32)
    print("(the weights are random, and so is the answer)")
    print(f"$ mxc report {output}", flush=True)
    show_artifact(artifact, wide=wide)
