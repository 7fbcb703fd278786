"""Quantize weights with llm-compressor, auto-round and Quark, for quantize_outputs.py --peers.

    pip install llmcompressor==0.14.0.1 auto-round==0.15.1 amd-quark==0.13 py-cpuinfo

These libraries quantize models, so the weights become the value projection of a model: a Mistral
with one layer, whose window is one token so that attention returns each token's own value, whose
output projection preserves lengths, and whose MLP is zero. The error of the layer is then that of
the projection, which auto-round minimizes. The embedding holds the inputs, one per token.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

os.environ["HF_HUB_OFFLINE"] = "1"

Floats = NDArray[np.float32]

#: Tokens of a sequence.
LENGTH = 512
PROJECTION = "self_attn.v_proj"
_OTHERS = ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def peers() -> dict[str, Callable[[str, Floats, Floats], Floats]]:
    """Return the libraries' methods by name.

    Each takes a format ("mxfp4" or "nvfp4"), weights [N, K] and calibration inputs [n, K], and
    returns the dequantized values [N, K] of the quantized weights.
    """
    return {
        "llm-compressor, gptq": llm_compressor,
        "auto-round": auto_round,
        "Quark": lambda *given: quark(*given, feedback=False),
        "Quark, gptq": lambda *given: quark(*given, feedback=True),
    }


def llm_compressor(name: str, weights: Floats, inputs: Floats) -> Floats:
    """Quantize by llm-compressor's GPTQ with its defaults: static activation order, blocks of 128
    columns."""
    from compressed_tensors.quantization import fake_quantize
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier

    tokens = _sequences(inputs)
    fields = {"input_ids": tokens.tolist(), "attention_mask": torch.ones_like(tokens).tolist()}
    scheme = {"mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16"}[name]
    with tempfile.TemporaryDirectory() as folder:  # the tokenizer is read from the model's folder
        _model(weights, inputs).save_pretrained(folder)
        tokenizer = _tokenizer(len(inputs))
        tokenizer.save_pretrained(folder)
        model = oneshot(
            model=folder,
            precision="float32",
            dataset=Dataset.from_dict(fields),
            # llm-compressor wants the three projections of one input in one format.
            recipe=GPTQModifier(targets=[r"re:.*\.[qkv]_proj"], scheme=scheme),
            num_calibration_samples=len(tokens),
            max_seq_length=LENGTH,
            pipeline="basic",
            processor=tokenizer,
        )
    layer = _projection(model)
    values = fake_quantize(
        layer.weight,
        layer.weight_scale,
        layer.weight_zero_point,
        layer.quantization_scheme.weights,
        global_scale=getattr(layer, "weight_global_scale", None),
    )
    return _array(values)


def auto_round(name: str, weights: Floats, inputs: Floats) -> Floats:
    """Quantize by auto-round: 200 steps of signed gradient descent, its default, with all inputs in
    each step."""
    from auto_round import AutoRound

    model = _model(weights, inputs)
    kept = {module: {"bits": 16} for module, _ in model.named_modules() if module.endswith(_OTHERS)}
    tokens = _sequences(inputs)
    made = AutoRound(
        model,
        _tokenizer(len(inputs)),
        scheme=name.upper(),
        act_bits=16,
        seqlen=LENGTH,
        nsamples=len(tokens),
        batch_size=len(tokens),
        dataset=[{"input_ids": row[None]} for row in tokens],
        layer_config=kept,
        device_map="cpu",
    ).quantize()
    return _array(_projection(made[0]).weight)


def quark(name: str, weights: Floats, inputs: Floats, *, feedback: bool) -> Floats:
    """Quantize by Quark: to nearest, or with `feedback` by GPTQ with its defaults."""
    from quark.torch import ModelQuantizer
    from quark.torch.quantization.config.config import (
        FP4PerGroupSpec,
        FP8E4M3PerTensorSpec,
        GPTQConfig,
        OCP_MXFP4Spec,
        QConfig,
        QLayerConfig,
        ScaleQuantSpec,
    )

    spec: Any = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False)
    if name == "nvfp4":  # the same as Quark's own scheme "nvfp4"
        spec = ScaleQuantSpec(
            first_stage=FP4PerGroupSpec(
                ch_axis=-1, group_size=16, is_dynamic=False, scale_type="float32"
            ),
            second_stage=FP8E4M3PerTensorSpec(
                observer_method="min_max", is_dynamic=False, scale_type="float32"
            ),
        )
    gptq = GPTQConfig(inside_layer_modules=[PROJECTION], model_decoder_layers="model.layers")
    config = QConfig(
        global_quant_config=QLayerConfig(weight=spec.to_quantization_spec()),
        exclude=[f"*{each}" for each in (*_OTHERS, "lm_head")],
        algo_config=[gptq] if feedback else None,
    )
    batches: Any = [{"input_ids": row} for row in _sequences(inputs)]
    loader = torch.utils.data.DataLoader(batches, batch_size=1)
    model = ModelQuantizer(config).quantize_model(_model(weights, inputs), loader)
    layer = _projection(ModelQuantizer.freeze(model))
    with torch.no_grad():
        return _array(layer(torch.eye(weights.shape[1])).T)


def _model(weights: Floats, inputs: Floats) -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    rows, depth = weights.shape
    config = MistralConfig(
        vocab_size=len(inputs),
        hidden_size=depth,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=rows // 128,
        num_key_value_heads=rows // 128,
        head_dim=128,
        sliding_window=1,
        rms_norm_eps=1e-12,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = MistralForCausalLM(config).float().eval()
    layer = model.model.layers[0]
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.from_numpy(inputs))
        layer.self_attn.v_proj.weight.copy_(torch.from_numpy(weights))
        layer.self_attn.o_proj.weight.copy_(torch.linalg.qr(torch.randn(depth, rows))[0])
        for zero in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            zero.weight.zero_()
    return model


def _tokenizer(tokens: int) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"t{index}": index for index in range(tokens)}
    model = Tokenizer(models.WordLevel(words, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="t0")


def _sequences(inputs: Floats) -> torch.Tensor:
    """Return token ids [sequences, LENGTH] that look up each input in the embedding once."""
    return torch.arange(len(inputs)).reshape(-1, LENGTH)


def _projection(model: Any) -> Any:
    return model.model.layers[0].self_attn.v_proj


def _array(values: torch.Tensor) -> Floats:
    found: Floats = values.detach().float().numpy()
    return np.ascontiguousarray(found)
