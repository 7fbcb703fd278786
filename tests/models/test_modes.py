"""Architectures beside gpt-oss with weights and activations that mxc quantizes.

The reference is transformers' model whose weights, and what meets them, our numpy reference has
quantized; test_activations.py says how far that carries.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from typer.testing import CliRunner

import mxc
from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.cli import app

#: Share of the root mean square of all logits, as in test_logits.py.
TOLERANCE = 2e-5

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
}
MIXTRAL = SMALL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
}
QWEN3 = SMALL | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
KIMI_LINEAR = SMALL | {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "linear_head_dim": 32,
    "linear_num_heads": 2,
    "linear_conv_kernel_dim": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
    "num_experts": 3,
    "num_experts_per_token": 2,
    "routed_scaling_factor": 2.446,
    "model_max_length": SMALL["max_position_embeddings"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
}
del KIMI_LINEAR["max_position_embeddings"]

#: The options that each is compiled with.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixtral": (MIXTRAL, {"quantize_dense": "mxfp8", "activations": "f32"}),
    "kimi_linear": (KIMI_LINEAR, {"quantize_dense": "mxfp8", "activations": "f32"}),
    "qwen3": (QWEN3, {"quantize_dense": "mxint8", "activations": "mxint8"}),
}
FORMATS = {"mxfp8": "mxfp8e4m3", "mxint8": "mxint8"}
#: Layers that stay as they are: what the decay and the rate of linear attention are made of.
RATES = (".f_a_proj", ".f_b_proj", ".b_proj")


def quantized(x: torch.Tensor, format: str) -> torch.Tensor:
    """The values of blocks of 32, whose scales are such that nothing saturates."""
    q = mxc.quantize(x.detach().contiguous().numpy(), format, recipe="rceil")
    return torch.from_numpy(np.asarray(mxc.dequantize(q)))


def reference(folder: Path, options: dict[str, Any]) -> torch.nn.Module:
    """transformers' model of the checkpoint, changed as the options say."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    format = FORMATS[options["quantize_dense"]]
    for name, module in model.named_modules():
        if name.endswith("kv_b_proj"):
            # Keys are multiplied along the other axis.
            keys, values = module.weight.unflatten(0, (4, 64)).split(32, dim=1)
            halves = quantized(keys.mT, format).mT, quantized(values, format)
            module.weight = torch.nn.Parameter(torch.cat(halves, dim=1).flatten(0, 1))
        elif isinstance(module, torch.nn.Linear) and not name.endswith(RATES):
            # A parameter of its own, where the head is the embedding too.
            module.weight = torch.nn.Parameter(quantized(module.weight, format))
            if options["activations"] != "f32":
                module.register_forward_pre_hook(
                    lambda _, inputs: (quantized(inputs[0], FORMATS[options["activations"]]),)
                )
        if name.endswith(".experts"):
            for part in ("gate_up_proj", "down_proj"):
                getattr(module, part).data = quantized(getattr(module, part), format)
    return model


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case, with `checkpoint` and `model.mxc`."""
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = folder = tmp_path_factory.mktemp(name)
            config, options = CASES[name]
            write_decoder(folder / "checkpoint", config, dtype="F32")
            mxc.compile(
                folder / "checkpoint",
                "cpu",
                folder / "model.mxc",
                max_sequence_length=20,
                **options,
            )
        return made[name]

    return build


def rows(folder: Path, texts: list[list[int]]) -> NDArray[np.float32]:
    """The artifact's logits of texts of one length."""
    sequence, found = mxc.load(folder / "model.mxc").sequence(), []
    for text in texts:
        sequence.reset()
        found.append(sequence.feed(text))
    return np.stack(found)


@pytest.mark.parametrize("name", ["mixtral", "kimi_linear"])
def test_quantized_weights(name: str, compiled: Callable[[str], Path]) -> None:
    """Every matrix but the router's, experts too: a text through prefill and its ragged end."""
    folder = compiled(name)
    text = np.random.default_rng(0).integers(0, SMALL["vocab_size"], 20).tolist()
    model = reference(folder / "checkpoint", CASES[name][1])
    with torch.no_grad():
        wanted = model(torch.tensor([text]), use_cache=False).logits.double().numpy()
    found = rows(folder, [text])
    assert np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)) <= TOLERANCE


def test_quantized_activations(compiled: Callable[[str], Path]) -> None:
    """Texts of one token: a rounding that flips reaches no other, so nearly all rows agree."""
    folder = compiled("qwen3")
    texts = [[token] for token in range(SMALL["vocab_size"])]
    options = CASES["qwen3"][1]
    agree = {}
    for activations in ("mxint8", "f32"):
        model = reference(folder / "checkpoint", options | {"activations": activations})
        with torch.no_grad():
            wanted = model(torch.tensor(texts), use_cache=False).logits.double().numpy()
        off = np.abs(rows(folder, texts) - wanted).max(axis=-1) / np.sqrt(np.mean(wanted**2))
        agree[activations] = np.mean(off <= TOLERANCE)
    assert agree["mxint8"] >= 0.8
    assert agree["f32"] <= 0.1


def test_commands_that_run_it(compiled: Callable[[str], Path]) -> None:
    artifact = str(compiled("qwen3") / "model.mxc")
    run = CliRunner()
    made = run.invoke(
        app, ["generate", artifact, "--prompt-tokens", "1,2,3", "--max-new-tokens", "4"]
    )
    assert made.exit_code == 0, made.output
    timed = run.invoke(app, ["bench", artifact, "--prompt", "8", "--generate", "4", "--json"])
    assert timed.exit_code == 0, timed.output
    assert "generate_tokens_per_second" in timed.output
