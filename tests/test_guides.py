"""The commands of guides are run on small models of the names that the guides give them."""

from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.compiler.cli.demo import OPTIONS
from tests.sessions import run_sessions

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: In this order: the later ones take what the first ones have compiled.
GUIDES = [DOCS / f"{name}.md" for name in ("checkpoints", "report", "serving", "quantization")]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 484,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


def test_the_guides(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "gpt-oss-20b", OPTIONS)
    write_decoder(tmp_path / "model-bf16", LLAMA)
    write_tokenizer(tmp_path / "model-bf16", LLAMA["vocab_size"])
    for name in ("book.txt", "text.txt"):
        (tmp_path / name).write_text((DOCS / "numerics.md").read_text())
    assert run_sessions(GUIDES, tmp_path) > 10
