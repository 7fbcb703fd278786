"""Gemma 4 (text): heads of two sizes, values that are keys, borrowed keys and values, experts.

Source: transformers' models/gemma4 and models/gemma4_unified (5.23), in float32: in bfloat16
transformers rounds the scale of the embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.architectures.gemma2 import NORMS
from mxc.compiler.models.blocks.dense_and_experts import DenseAndExperts
from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.gates import GATES, PLAIN
from mxc.compiler.models.blocks.layer_inputs import LayerInputs
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, SLIDING, read_ropes
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer

_GELU, _EXPERTS = "gelu_pytorch_tanh", ("num_experts", "top_k_experts", "moe_intermediate_size")


def gemma4(c: Fields, *, inputs: int = 256, window: int = 512) -> Decoder:
    """The model of a config: five layers of six slide, full ones have longer heads.

    `inputs` and `window`: defaults of hidden_size_per_layer_input and sliding_window.
    """
    activation = c.known("hidden_activation", tuple(PLAIN), _GELU)
    if c.raw("use_bidirectional_attention") is not None:
        c.known("use_bidirectional_attention", ("vision",))  # tokens of one image alone
    kinds, same = layer_kinds(c, period=6), c.flag("attention_k_eq_v", False)
    if c.inner("rope_parameters") is None:
        raise c.refuse("rope_parameters", f"an object with {FULL} and {SLIDING}", None)
    ropes = read_ropes(c, sorted({*kinds}), theta={FULL: 1e6, SLIDING: 1e4})
    borrowing = c.raw("num_kv_shared_layers") and c.size("num_kv_shared_layers")
    first = len(kinds) - (borrowing or 0)
    if {*kinds[: max(first, 0)]} != {*kinds}:
        raise c.refuse("num_kv_shared_layers", "layers of each kind before them", borrowing)
    norm, bias = Norm(epsilon=c.number("rms_norm_eps", 1e-6)), c.flag("attention_bias", False)
    experts, double = _experts(c), 2 if c.flag("use_double_wide_mlp", False) else 1
    width = c.size("sliding_window", window)
    layers = []
    for number, (kind, own) in enumerate(zip(kinds, _by_layer(c, kinds, same), strict=True)):
        borrows = number >= first
        heads = self_attention(
            own,
            depth=256,
            rope=ropes[kind],
            input_bias=bias,
            output_bias=bias,
            qk_norm="head",
            window=width if kind == SLIDING else None,
            scale=1.0,
        )
        shared = same and kind == FULL
        attention = replace(heads, value_norm=True, values_are_keys=shared, borrows=borrows)
        dense = mlp(c, act_field="hidden_activation", activation=_GELU, count=double**borrows)
        layer = Layer(attention=attention, mlp=dense, norms=NORMS, scaled=True)
        if experts is not None:
            both = DenseAndExperts(mlp=dense, experts=experts, norm=norm)
            layer = replace(layer, mlp=both, norms=replace(NORMS, before_mlp=None))
        layers.append(layer)
    cap = c.raw("final_logit_softcapping") and c.number("final_logit_softcapping")
    hidden, given = c.size("hidden_size"), c.raw("hidden_size_per_layer_input")
    c.inert("vocab_size_per_layer_input")
    more = None
    if inputs if given is None else given:
        more = LayerInputs(
            vocabulary=c.size("vocab_size_per_layer_input", 262144),
            hidden=hidden,
            layers=len(layers),
            width=c.size("hidden_size_per_layer_input", inputs),
            activation=PLAIN[activation],
        )
    scale = hidden**0.5
    return decoder(
        c,
        "gemma4_text",
        layers,
        norm=norm,
        tied=True,
        embedding_scale=scale,
        logits_cap=cap,
        inputs=more,
    )


def gemma4_unified(c: Fields) -> Decoder:
    """The model of a config of the class that sees without a tower: other defaults."""
    return gemma4(c, inputs=0, window=1024)


def _by_layer(c: Fields, kinds: tuple[str, ...], same: bool) -> list[Fields]:
    """The fields of each layer: full ones have heads of their own, or `per_layer_config` says."""
    full: dict[str, Any] = {"head_dim": c.size("global_head_dim", 512)}
    if c.raw("num_global_key_value_heads") is not None and same:
        full["num_key_value_heads"] = c.size("num_global_key_value_heads")
    given, names = c.raw("per_layer_config"), {str(number) for number in range(len(kinds))}
    if given is None:
        given = {str(number): full for number, kind in enumerate(kinds) if kind == FULL}
    known = {"head_dim", "num_key_value_heads"}
    if not {*given} <= names or any(not {*each} <= known for each in given.values()):
        raise c.refuse("per_layer_config", f"{' and '.join(sorted(known))} of layers", given)
    return [c.over(given.get(str(number), {})) for number in range(len(kinds))]


def _experts(c: Fields) -> Mixture | None:
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
        activation=GATES[c.known("hidden_activation", tuple(PLAIN), _GELU)],
        count_field="num_experts",
        width_field="moe_intermediate_size",
    )
