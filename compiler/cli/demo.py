"""`mxc demo`: the whole road on a small random checkpoint, on this machine, in one command."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from mxc.compiler import road
from mxc.compiler.checkpoints.synthetic import GptOssOptions, write_gpt_oss
from mxc.compiler.cli.compile import show_artifact, showing
from mxc.compiler.cli.generate import command as generate

PROMPT = "Which numbers can four bits hold?"

#: Small, and of every kind: sliding and full layers, grouped queries, more experts than choices.
OPTIONS = GptOssOptions(
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    num_local_experts=8,
    num_experts_per_tok=4,
    vocab_size=1024,
    sliding_window=32,
)


def command(directory: Path | None) -> None:
    """Write a checkpoint, compile it for this CPU, generate, and show the report.

    Everything goes to `directory`, or to a temporary folder that is removed at the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="mxc-demo-")) if directory is None else directory
    console = Console()
    try:
        checkpoint, output = folder / "gpt-oss-tiny", folder / "gpt-oss-tiny.mxc"
        console.print(f"writing a small random gpt-oss checkpoint to {checkpoint}")
        write_gpt_oss(checkpoint, OPTIONS)
        console.print(f"$ mxc compile {checkpoint} --target cpu --output {output}")
        with showing(Console(stderr=True)) as progress:
            artifact = road.compile(
                checkpoint, "cpu", output, max_sequence_length=256, force=True, progress=progress
            )
        console.print(f'$ mxc generate {output} --prompt "{PROMPT}" --max-new-tokens 32')
        generate(output, prompt=PROMPT, max_new_tokens=32)
        console.print("(the weights are random, and so is the answer)")
        console.print(f"$ mxc report {output}")
        show_artifact(artifact)
    finally:
        if directory is None:
            shutil.rmtree(folder, ignore_errors=True)
