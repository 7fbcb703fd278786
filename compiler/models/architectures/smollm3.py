"""SmolLM3: Llama where every fourth layer has no rotary embedding.

Source: transformers' models/smollm3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import FULL, SLIDING, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def smollm3(c: ConfigFields) -> Decoder:
    """The model of a config."""
    count, bias = c.size("num_hidden_layers"), c.flag("attention_bias", False)
    rope, dense = read_rope(c, theta=2e6), mlp(c, bias=c.flag("mlp_bias", False))
    rotates, slides = rotated(c, count), c.flag("use_sliding_window", False)
    window = c.raw("sliding_window")
    c.inert("max_window_layers")  # of Qwen2; layer_types or no_rope_layers say which layers slide
    types = c.raw("layer_types") or [
        SLIDING if slides and window is not None and not each else FULL for each in rotates
    ]
    if not isinstance(types, list) or len(types) != count or not {*types} <= {SLIDING, FULL}:
        raise c.refuse("layer_types", f"a list of {count} times {SLIDING} or {FULL}", types)
    layers = [
        Layer(
            attention=self_attention(
                c,
                shared=4,
                rope=rope if each else None,
                input_bias=bias,
                output_bias=bias,
                window=c.size("sliding_window") if slides and kind == SLIDING else None,
            ),
            mlp=dense,
        )
        for each, kind in zip(rotates, types, strict=True)
    ]
    return decoder(c, "smollm3", layers, tied=True)


def rotated(c: ConfigFields, count: int) -> list[bool]:
    """Return for each layer whether it has a rotary embedding.

    `no_rope_layers` has 1 where it does, despite its name.
    """
    found, interval = c.raw("no_rope_layers"), c.size("no_rope_layer_interval", 4)
    if found is None:
        return [bool((number + 1) % interval) for number in range(count)]
    if not isinstance(found, list) or len(found) != count or not {*found} <= {0, 1}:
        raise c.refuse("no_rope_layers", f"a list of {count} times 0 or 1", found)
    return [bool(each) for each in found]
