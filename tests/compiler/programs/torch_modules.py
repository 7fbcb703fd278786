"""Modules of torch and transformers with random weights: name -> (module, its arguments)."""

from collections.abc import Callable
from typing import Any

import torch
from torch_scaled_modules import SCALED

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


MODULES: dict[str, Callable[[], Module]] = {
    "torch TransformerEncoderLayer": encoder_layer,
    "transformers LlamaMLP": llama_mlp,
    "transformers BertLayer": bert_layer,
    "transformers LlamaRMSNorm, Linear": rms_norm,
    "transformers GPT2MLP": gpt2_mlp,
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
