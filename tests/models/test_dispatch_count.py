"""How many dispatches a token takes on gfx950, as docs/gpu.md says."""

import json
from pathlib import Path

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss

#: Experts, and heads for a key, as gpt-oss-20b has them, in smaller layers.
OPTIONS = GptOssOptions(
    hidden_size=256, intermediate_size=256, num_attention_heads=16, num_key_value_heads=2,
    head_dim=64, num_local_experts=32, num_experts_per_tok=4, num_hidden_layers=2,
)  # fmt: skip


def test_a_layer_of_gpt_oss_has_eight(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "model", OPTIONS, tokenizer=False)
    artifact = mxc.compile(
        tmp_path / "model", "gfx950", tmp_path / "model.mxc", activations="bf16", strict=True
    )
    report = json.loads((artifact.path / REPORT).read_text())
    names = [operation["name"] for operation in report["operations"]]
    assert sum("layers.1." in name for name in names) == 8
    # Six outside of layers, and the norm before the first one.
    assert report["dispatches"] == len(names) == 6 + 1 + 2 * 8
