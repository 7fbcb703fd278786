"""StarCoder 2: layer norms, an MLP without a gate, biases.

Source: transformers' models/starcoder2 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, plain, self_attention
from mxc.compiler.models.blocks.mlp import FeedForward
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def starcoder2(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias = c.flag("use_bias", True)
    # Fields of training, and fields of the release with fixed values.
    c.inert("residual_dropout", "embedding_dropout")
    # GPT-BigCode's names: hidden_act and norm_epsilon count.
    c.inert("activation_function", "layer_norm_epsilon")
    for name in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        c.known(name, (True,), True)
    c.known("scale_attn_weights", (True,), True)
    c.known("mlp_type", ("default",), "default")
    c.known("norm_type", ("layer_norm",), "layer_norm")
    window = c.raw("sliding_window") and c.size("sliding_window")
    layer = Layer(
        attention=self_attention(c, shared=2, input_bias=bias, output_bias=bias, window=window),
        mlp=FeedForward(
            hidden=c.size("hidden_size"),
            width=c.size("intermediate_size"),
            activation=plain(c, default="gelu_pytorch_tanh"),
            bias=bias,
            up="c_fc",
            down="c_proj",
        ),
    )
    norm = Norm(epsilon=c.number("norm_epsilon", 1e-5), centered=True, bias=True)
    layers = [layer] * c.size("num_hidden_layers")
    return decoder(c, "starcoder2", layers, norm=norm, tied=True)
