"""Llama 4, the language model: chunked attention, layers without rotary embedding, one expert.

Layers with rotary embedding attend to their chunk, and normalize queries and keys without weights.
The other layers have full attention, and scale queries by a temperature that grows with the
position. The input of an expert is multiplied by its share. Source: transformers' models/llama4
(5.23).
"""

from mxc.compiler.models.architectures.family import decoder, gate, mlp, self_attention
from mxc.compiler.models.architectures.smollm3 import rotated
from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.mixture import Mixture, SharedExpert
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.blocks.self_attention import Temperature
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer
from mxc.dialects.attention import AttentionChunk


def llama4(c: ConfigFields) -> Decoder:
    """The model of a config."""
    count, bias = c.size("num_hidden_layers"), c.flag("attention_bias", False)
    rope, normed = read_rope(c, theta=5e5, interleaved=True), c.flag("use_qk_norm", True)
    tuned, floor = c.flag("attn_temperature_tuning", True), c.size("floor_scale", 8192)
    temperature = Temperature(step=floor, factor=c.number("attn_scale", 0.1))
    c.inert("for_llm_compressor")  # how transformers 4.51 made the experts
    rotates, name = rotated(c, count), "attention_chunk_size"
    chunk = None if c.is_null(name) else AttentionChunk(c.size(name, 8192))
    types = ["chunked_attention" if each else "full_attention" for each in rotates]
    if c.raw("layer_types") not in (None, types):
        raise c.refuse("layer_types", f"{types}, as no_rope_layers says", c.raw("layer_types"))
    near = self_attention(
        c,
        depth=128,
        rope=rope,
        input_bias=bias,
        output_bias=bias,
        qk_norm="length" if normed else None,
        epsilon=c.number("rms_norm_eps"),
        window=chunk,
    )
    far = self_attention(
        c,
        depth=128,
        rope=None,
        input_bias=bias,
        output_bias=bias,
        temperature=temperature if tuned else None,
    )
    dense, experts, sparse = mlp(c, width_field="intermediate_size_mlp"), _experts(c), _sparse(c)
    layers = [
        Layer(
            attention=near if rotates[number] else far,
            mlp=experts if number in sparse else dense,
            mlp_name="feed_forward",
        )
        for number in range(count)
    ]
    return decoder(c, "llama4_text", layers)


def _experts(c: ConfigFields) -> Mixture:
    return Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.size("num_local_experts"),
        choices=c.known("num_experts_per_tok", (1,), 1),
        router="router",
        routing=Routing(scores="sigmoid", normalized=False),
        tensors=ExpertTensors(stacked=True),
        shared=SharedExpert(mlp=mlp(c), name="shared_expert"),
        activation=gate(c, "hidden_act", "silu"),
        weighs_inputs=True,
    )


def _sparse(c: ConfigFields) -> list[int]:
    """Return the layers with experts: `moe_layers`, or every interleave_moe_layer_step-th."""
    step, count = c.size("interleave_moe_layer_step", 1), c.size("num_hidden_layers")
    found = c.raw("moe_layers")
    if found is None:
        return list(range(step - 1, count, step))
    if not isinstance(found, list) or not {*found} <= {*range(count)}:
        raise c.refuse("moe_layers", f"a list of layers, 0 to {count - 1}", found)
    return found
