"""Modules of torch and transformers with random weights: name -> (module, its arguments)."""

from collections.abc import Callable
from typing import Any

import torch

from tests.compiler.programs.torch_scaled_modules import SCALED

Module = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def encoder_layer() -> Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return layer, (torch.randn(1, 6, 32),)


def llama_mlp() -> Module:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    return LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=96)), (torch.randn(2, 5, 64),)


def bert_layer() -> Module:
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(hidden_size=32, num_attention_heads=2, intermediate_size=64)
    config._attn_implementation = "eager"

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = BertLayer(config)

        def forward(self, x: torch.Tensor) -> Any:
            found = self.layer(x)
            return found[0] if isinstance(found, tuple) else found

    return First(), (torch.randn(1, 6, 32),)


def rms_norm() -> Module:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return torch.nn.Sequential(LlamaRMSNorm(64), torch.nn.Linear(64, 48)), (torch.randn(3, 64),)


def gpt2_mlp() -> Module:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    return GPT2MLP(64, GPT2Config(n_embd=32)), (torch.randn(1, 4, 32),)


class Attention(torch.nn.Module):
    """torch's function; 4 query heads, and a mask where one is given."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal, enable_gqa=k.shape[1] < q.shape[1]
        )


def causal_attention() -> Module:
    keys = torch.randn(2, 2, 2, 19, 16)
    return Attention(causal=True), (torch.randn(2, 4, 19, 16), *keys)


def masked_attention() -> Module:
    """One text has fewer tokens, and one query no key."""
    mask = torch.ones(2, 1, 5, 19, dtype=torch.bool)
    mask[1, ..., 7:], mask[0, :, 3] = False, False
    return Attention(), (torch.randn(2, 4, 5, 16), *torch.randn(2, 2, 4, 19, 16), mask)


def biased_attention() -> Module:
    """Numbers are added to scores."""
    return Attention(), (
        torch.randn(2, 4, 5, 16),
        *torch.randn(2, 2, 4, 19, 16),
        torch.randn(5, 19),
    )


def gpt2_model() -> Module:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    config = GPT2Config(n_embd=32, n_head=2, n_layer=1, n_positions=16, vocab_size=16)
    model = GPT2Model(config)

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> Any:
            return self.model(inputs_embeds=x, use_cache=False)[0]

    return Hidden(), (torch.randn(2, 9, 32),)


MODULES: dict[str, Callable[[], Module]] = {
    "torch TransformerEncoderLayer": encoder_layer,
    "transformers LlamaMLP": llama_mlp,
    "transformers BertLayer": bert_layer,
    "transformers LlamaRMSNorm, Linear": rms_norm,
    "transformers GPT2MLP": gpt2_mlp,
    "transformers GPT2Model": gpt2_model,
    "attention, causal": causal_attention,
    "attention, masked": masked_attention,
    "attention, biased": biased_attention,
}


def exported() -> dict[str, tuple[torch.export.ExportedProgram, torch.nn.Module, Any]]:
    """Each module exported, with the module and its arguments."""
    found = {}
    for name, build in {**MODULES, **SCALED}.items():
        torch.manual_seed(0)
        module, values = build()
        module.eval()
        found[name] = (torch.export.export(module, values, strict=False), module, values)
    return found
