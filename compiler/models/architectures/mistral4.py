"""Mistral Small 4: latent attention with temperature of queries, softmax routing.

Source: transformers' models/mistral4 (5.23).
"""

from dataclasses import replace

from mxc.compiler.models.architectures.deepseek import latent_attention, mlps
from mxc.compiler.models.architectures.family import decoder
from mxc.compiler.models.architectures.glm4_moe import sigmoid_experts
from mxc.compiler.models.architectures.mistral import BESIDE, temperature
from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def mistral4(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c.inert("head_dim", "qk_head_dim")  # sums of other fields
    rotated = c.size("qk_rope_head_dim")
    share = rotated / (rotated + c.size("qk_nope_head_dim"))
    interleaved = c.switch("rope_interleave", True)
    rope = read_rope(c, fraction=share, interleaved=interleaved, beside=BESIDE)
    if rope.fraction != share:
        wanted = f"{share}, the part qk_rope_head_dim of a head"
        raise c.refuse("partial_rotary_factor", wanted, rope.fraction)
    # The latent attention block rotates the whole rotary part.
    attention = latent_attention(c, rank=1024, rope=replace(rope, fraction=1.0))
    attention = replace(attention, temperature=temperature(c))
    experts = sigmoid_experts(c)
    routing = replace(experts.routing, scores="softmax", correction=None)
    experts = replace(experts, routing=routing, tensors=ExpertTensors(stacked=True))
    layers = [Layer(attention=attention, mlp=each) for each in mlps(c, experts, 0)]
    return decoder(c, "mistral4", layers)
