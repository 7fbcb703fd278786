"""A packed KV cache on the simulator: its bytes and the logits are those of the CPU's program."""

from pathlib import Path

import numpy as np
import pytest

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss


@pytest.mark.parametrize(
    ("name", "depth"), [("mxint8", 32), ("mxfp8", 32), ("fp8", 32), ("bf16", 8)]
)
def test_pages_and_logits_are_those_of_the_cpu(name: str, depth: int, tmp_path: Path) -> None:
    """Prefill, then decode. Keys are sums in another order: an element may be rounded otherwise.

    Heads of 8 elements take whole tiles of 16 in pages.
    """
    options = GptOssOptions(
        num_hidden_layers=1, layer_types=("sliding_attention",), vocab_size=512, head_dim=depth
    )
    write_gpt_oss(tmp_path / "checkpoint", options, tokenizer=False)
    logits, pages = {}, {}
    for target, device in (("gfx950", "simulator"), ("cpu", None)):
        output = tmp_path / f"{target}.mxc"
        mxc.compile(
            tmp_path / "checkpoint",
            target,
            output,
            max_sequence_length=32,
            activations="bf16",
            kv_cache=name,
            listing=False,
        )
        sequence = mxc.load(output, device=device).sequence()
        feeds = [sequence.feed([5, 17, 200, 3, 77, 402]), sequence.feed([9])]
        logits[target], pages[target] = np.concatenate(feeds), sequence.pages()
    assert pages["cpu"].any()
    assert (pages["gfx950"] != pages["cpu"]).sum() < 5
    largest = np.abs(logits["cpu"]).max()
    np.testing.assert_allclose(logits["gfx950"], logits["cpu"], atol=2**-7 * largest, rtol=0)
