"""Gemma 4 (text): two head sizes, values equal to keys, KV sharing between layers, experts.

Source: transformers' models/gemma4 and models/gemma4_unified (5.23), in float32: in bfloat16
transformers rounds the scale of the embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mxc.compiler.models.architectures import family
from mxc.compiler.models.architectures.gemma2 import NORMS
from mxc.compiler.models.blocks.dense_and_experts import DenseAndExperts
from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.gates import GATES
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, SLIDING, read_ropes
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

_ACT, _GELU = "hidden_activation", "gelu_pytorch_tanh"
_EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")


def gemma4(
    c: ConfigFields, name: str = "gemma4_text", *, inputs: int = 256, window: int = 512
) -> Decoder:
    """The model of a config.

    inputs, window: defaults of hidden_size_per_layer_input and sliding_window in transformers.
    """
    if c.raw("use_bidirectional_attention") is not None:
        c.known("use_bidirectional_attention", ("vision",))  # concerns only tokens of images
    # The last layer is full, whatever period or layer_types say.
    kinds, same = (*family.layer_kinds(c, period=6)[:-1], FULL), c.flag("attention_k_eq_v", False)
    if c.inner("rope_parameters") is None:
        raise c.refuse("rope_parameters", f"an object with {FULL} and {SLIDING}", None)
    ropes = read_ropes(c, sorted({*kinds}), theta={FULL: 1e6, SLIDING: 1e4})
    norm, bias = Norm(epsilon=c.number("rms_norm_eps", 1e-6)), c.flag("attention_bias", False)
    width, wide = c.size("sliding_window", window), c.flag("use_double_wide_mlp", False)
    own, borrowing, experts = _of_layers(c, kinds, same), family.borrowing(c, kinds), _experts(c)
    layers = []
    for kind, fields, borrows in zip(kinds, own, borrowing, strict=True):
        heads = family.self_attention(
            fields,
            depth=256,
            rope=ropes[kind],
            input_bias=bias,
            output_bias=bias,
            qk_norm="head",
            window=width if kind == SLIDING else None,
            scale=1.0,
        )
        shared = same and kind == FULL
        heads = replace(heads, value_norm=True, values_are_keys=shared, borrows=borrows)
        count = 2 if wide and borrows else 1
        dense = family.mlp(c, act_field=_ACT, activation=_GELU, count=count)
        layer = Layer(attention=heads, mlp=dense, norms=NORMS, scaled=True)
        if experts is not None:
            both = DenseAndExperts(mlp=dense, experts=experts, norm=norm)
            layer = replace(layer, mlp=both, norms=replace(NORMS, before_mlp=None))
        layers.append(layer)
    return family.decoder(
        c,
        name,
        layers,
        norm=norm,
        tied=True,
        embedding_scale=c.size("hidden_size") ** 0.5,
        logits_cap=c.raw("final_logit_softcapping") and c.number("final_logit_softcapping"),
        inputs=family.layer_inputs(c, len(layers), inputs, _GELU),
    )


def gemma4_unified(c: ConfigFields) -> Decoder:
    """The model of a config of the variant without a vision tower, which has other defaults."""
    return gemma4(c, "gemma4_unified_text", inputs=0, window=1024)


def _of_layers(c: ConfigFields, kinds: tuple[str, ...], same: bool) -> list[ConfigFields]:
    """Return the fields of each layer, with own head sizes in full layers.

    `per_layer_config` states them, else the global_ fields of the config.
    """
    full: dict[str, Any] = {"head_dim": c.size("global_head_dim", 512)}
    if c.raw("num_global_key_value_heads") is not None and same:
        full["num_key_value_heads"] = c.size("num_global_key_value_heads")
    given = {number: full for number, kind in enumerate(kinds) if kind == FULL}
    return c.by_layer("per_layer_config", len(kinds), ("head_dim", "num_key_value_heads"), given)


def _experts(c: ConfigFields) -> Mixture | None:
    c.inert(*_EXPERTS)
    if not c.flag("enable_moe_block", False):
        return None
    return Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("moe_intermediate_size"),
        experts=c.size("num_experts"),
        choices=c.size("top_k_experts"),
        router="router.proj",
        routing=Routing(factors="router.per_expert_scale"),
        tensors=ExpertTensors(stacked=True),
        activation=GATES[c.known(_ACT, tuple(GATES), _GELU)],
        count_field="num_experts",
        width_field="moe_intermediate_size",
    )
