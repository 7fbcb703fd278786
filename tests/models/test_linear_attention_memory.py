"""Bytes of transient buffers of calls of models with linear attention, by the scheduled program.

Rules of linear attention in chunks pad the rows of a call, and keep a state for each chunk. Ours
has rows of activations, and the states in their pool.
"""

from pathlib import Path
from typing import Any

import pytest
import transformers as t
from iree.compiler import ir

from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.driver import compile_here
from mxc.compiler.levels import unit_of
from mxc.compiler.models.model import open_model
from mxc.compiler.report import build_report
from mxc.compiler.steps import CompileRequest, CompileStep
from mxc.dialects.context import prepare
from mxc.targets.target import target as record_of

KINDS = ["linear_attention", "full_attention"]
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
    "layer_types": KINDS,
}
#: A state has 128 x 128 numbers, as in the published models, and a row of activations few.
CONFIGS = {
    "gated delta net": t.Qwen3_5TextConfig(
        **SIZES,
        head_dim=32,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    ),
    "Kimi delta attention": t.KimiLinearConfig(
        **SIZES,
        kv_lora_rank=128,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        linear_num_heads=1,
        linear_head_dim=128,
        linear_conv_kernel_dim=4,
        mlp_layer_types=["dense", "dense"],
    ),
    "Mamba 2": t.GraniteMoeHybridConfig(
        **SIZES,
        num_local_experts=0,
        shared_intermediate_size=64,
        mamba_n_heads=1,
        mamba_d_state=128,
        attention_multiplier=0.2,
    ),
    # Its states are two rows of activations, no matrix.
    "short convolution": t.Lfm2Config(
        **SIZES | {"layer_types": ["conv", "full_attention"]}, block_auto_adjust_ff_dim=False
    ),
}


#: Bytes of a state, rows of a call, and rows of a chunk in rules that keep one for each
#: (transformers has 64).
STATE, ROWS, CHUNK = 128 * 128 * 4, 512, 64


class _ScheduledError(Exception):
    """The program is scheduled: buffers have sizes, and what is left is code."""


def transients(folder: Path, config: Any, target: str) -> dict[str, int]:
    """Bytes of the transient buffers of calls: of a token, and of a prompt of so many rows."""
    name = f"{type(config).__name__.removesuffix('TextConfig').removesuffix('Config')}ForCausalLM"
    write_decoder(folder / "checkpoint", config.to_dict() | {"architectures": [name]})
    record = record_of(target)
    model = open_model(folder / "checkpoint", max_sequence_length=ROWS, unit=unit_of([record]))
    request = CompileRequest(
        program=model.program(record.group_rows),
        place=name,
        target=target,
        module=folder / "model.vmfb",
        parameters=True,
    )
    program, before = folder / "program", dict[str, bytes]()

    def tell(step: CompileStep) -> None:
        if step.kind == "phase" and step.seconds is None:
            before[step.name] = program.read_bytes()
            if step.name == "executable-sources":
                raise _ScheduledError

    with pytest.raises(_ScheduledError):
        compile_here(request, None, program, tell)
    with prepare(ir.Context()):
        flow, stream = (
            ir.Module.parse(before[phase]).operation for phase in ("stream", "executable-sources")
        )
        (step,) = build_report(flow, stream, {}, record).functions
    return dict(step.samples)


@pytest.mark.parametrize(
    ("name", "target", "row"),
    [
        ("gated delta net", "cpu:znver4", 9296),
        ("gated delta net", "gfx950", 7984),
        ("Kimi delta attention", "cpu:znver4", 15364),
        ("Kimi delta attention", "gfx950", 12388),
        ("Mamba 2", "cpu:znver4", 9260),
        ("Mamba 2", "gfx950", 8332),
        ("short convolution", "cpu:znver4", 2785),
        ("short convolution", "gfx950", 2184),
    ],
)
def test_no_state_grows_with_the_chunk(name: str, target: str, row: int, tmp_path: Path) -> None:
    """`row`: bytes of activations that a row takes; a pass that keeps others changes it a little.

    The bound is halfway to what it would be with a state for each chunk.
    """
    found = transients(tmp_path, CONFIGS[name], target)
    # Rows are not padded to a chunk.
    assert found["token"] <= found["prompt"] / (ROWS / 2)
    assert (found["prompt"] - found["token"]) / (ROWS - 1) < row + STATE / CHUNK / 2


def test_the_reference_pads_rows(tmp_path: Path) -> None:
    """IREE computes it where we have no kernel: the bounds above tell the two apart."""
    found = transients(tmp_path, CONFIGS["gated delta net"], "cpu:x86-64")
    assert found["token"] > found["prompt"] / (ROWS / 2)
