"""Hunyuan (dense) and the translation models HY-MT: QK norms after the rotary embedding.

Source: transformers' models/hunyuan_v1_dense (5.23).
"""

from dataclasses import replace

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import Rope, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: The checkpoints' names of the norms of queries and keys.
_NAMES = ((".query_layernorm.", ".q_norm."), (".key_layernorm.", ".k_norm."))


def hunyuan(c: ConfigFields) -> Decoder:
    """The model of a config."""
    _known(c)
    depth = c.size("head_dim", c.size("hidden_size") // c.size("num_attention_heads"))
    c.known("attention_head_dim", (depth,), depth)
    attention = self_attention(
        c,
        shared=c.size("num_attention_heads"),
        rope=_rope(c, depth),
        input_bias=c.flag("attention_bias", False),
        output_bias=c.flag("attention_bias", False),
        qk_norm="rotated",
    )
    layers = [Layer(attention=attention, mlp=mlp(c))] * c.size("num_hidden_layers")
    return replace(decoder(c, "hunyuan_v1_dense", layers), aliases=_NAMES)


def _rope(c: ConfigFields, depth: int) -> Rope:
    """Read the rotary embedding; with an `alpha` (type "dynamic") the other fields are unused."""
    scaling = c.inner("rope_parameters") or c.inner("rope_scaling")
    if scaling is None or scaling.raw("alpha") is None:
        return read_rope(c)
    said = {each.number("rope_theta") for each in (c, scaling) if each.raw("rope_theta")}
    theta, *others = said or {10000.0}
    if others:
        raise c.refuse("rope_theta", "that of rope_parameters", c.raw("rope_theta"))
    for name in ("type", "rope_type"):
        scaling.known(name, ("dynamic",), "dynamic")
    scaling.inert("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    scaling.finish()
    return Rope(theta=theta * scaling.number("alpha") ** (depth / (depth - 2)))


def _known(c: ConfigFields) -> None:
    """Check fields that must have the architecture's fixed values; skip token ids and others."""
    c.known("use_qk_norm", (True,), True)
    c.known("use_cla", (False,), False)
    c.known("use_rotary_pos_emb", (True,), True)
    c.known("mlp_bias", (False,), False)
    c.known("norm_type", ("rms",), "rms")
    tokens = ("eod_token_id", "sep_token_id", "pad_id", "mask_init_id", "org_vocab_size")
    images = ("im_start_id", "im_end_id", "im_newline_id", "text_start_id", "text_end_id")
    heads = ("add_classification_head", "class_num", "pool_type", "dense_list")
    c.inert("cla_share_factor", *tokens, *images, *heads)
