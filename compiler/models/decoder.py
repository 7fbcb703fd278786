"""A decoder as a record of blocks, from which builder.py builds the module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.blocks.attention import CacheKind, CacheRow
from mxc.compiler.models.blocks.attention_residuals import AttentionResiduals
from mxc.compiler.models.blocks.dense_and_experts import DenseAndExperts
from mxc.compiler.models.blocks.devices import divided
from mxc.compiler.models.blocks.gated_convolution import GatedConvolution
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.layer_inputs import LayerInputs
from mxc.compiler.models.blocks.linear_attention import LinearAttention
from mxc.compiler.models.blocks.mamba2 import Mamba2
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import FeedForward, Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import FormatOf, Parameter, matrix, table, vector
from mxc.compiler.models.blocks.rope import Rope, tables
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.dialects.attention import AttentionChunk, Reach

#: Name of the scalar that a layer's result is multiplied with, where the layer has one.
SCALAR = "layer_scalar"

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

#: Attention that keeps each token in pages of the KV cache.
Cached = SelfAttention | LatentAttention

#: Blocks in the place of attention that keep a recurrent state of each sequence.
Recurrent = LinearAttention | GatedConvolution | Mamba2

#: Positions per page of keys and values: two key blocks of a GPU kernel, two to four of a CPU
#: kernel.
PAGE = 64


@dataclass(frozen=True)
class LayerPages:
    """The pages of `layers` layers with the same reach of queries and the same cache row."""

    reach: Reach
    row: CacheRow
    layers: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of a page: [entries, positions, V, D]."""
        return self.layers * self.row.entries, PAGE, self.row.heads, self.row.depth

    @property
    def window(self) -> int | None:
        """The most positions that a token sees, itself included; None for all earlier ones."""
        return self.reach.size if isinstance(self.reach, AttentionChunk) else self.reach


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """The names of a layer's norms; None in a place without a norm."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    def names(self) -> Iterator[str]:
        """Yield the names of the norms that exist."""
        places = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        yield from (name for name in places if name is not None)


#: Norms before both parts of a layer (Llama).
PRE_NORMS = LayerNorms()
#: Norms after both parts, before the residual addition (OLMo 2, EXAONE 4).
POST_NORMS = LayerNorms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

    `attention_name` and `mlp_name`: the names of both parts in the checkpoint. `parallel`: the
    layer is x + attention(norm(x)) + mlp(norm(x)) with one norm. `residual`: factor of both parts
    before they are added. `scaled`: the result is multiplied by the layer's scalar, layer_scalar.
    """

    attention: Cached | Recurrent
    mlp: Mlp | FeedForward | Mixture | DenseAndExperts
    mlp_name: str = "mlp"
    attention_name: str = "self_attn"
    norms: LayerNorms = PRE_NORMS
    parallel: bool = False
    residual: float = 1.0
    scaled: bool = False


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only model, as an architecture reads it from a config.

    At least one layer has a KV cache. All layers without one have recurrent states of equal shapes.

    `embedding_scale` and `logits_scale`: factors of embeddings and logits. `logits_cap`: logits
    become cap * tanh(logit / cap). `eos_tokens`: those of config.json; other files of a checkpoint
    may state more. `aliases`: pairs of a part of a tensor name in checkpoints and the name used
    here. `next_tokens`: number of extra layers in the checkpoint that predict tokens after the next
    one; the program omits them. `inputs`: per-layer inputs computed from the tokens. `residuals`:
    what the parts of layers read instead of the sum of all earlier ones.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    norm: Norm
    layers: tuple[Layer, ...]
    tied: bool
    eos_tokens: tuple[int, ...]
    bos_token: int | None
    pad_token: int | None
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float | None = None
    aliases: tuple[tuple[str, str], ...] = ()
    next_tokens: int = 0
    inputs: LayerInputs | None = None
    residuals: AttentionResiduals | None = None

    def named(self, stored: str) -> str:
        """Return the name used here of a tensor that checkpoints store as `stored`."""
        for theirs, known in self.aliases:
            stored = stored.replace(theirs, known)
        return stored

    @property
    def heads(self) -> Cached:
        """The attention of the first layer with a cache."""
        return next(each for each in self.attentions if each is not None)

    @property
    def attentions(self) -> tuple[Cached | None, ...]:
        """The attention of each layer; None for layers that keep a recurrent state instead."""
        every = (layer.attention for layer in self.layers)
        return tuple(each if isinstance(each, Cached) else None for each in every)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The distinct rotary embeddings of the layers."""
        found = (each.rope for each in self.attentions if each is not None)
        return tuple(dict.fromkeys(rope for rope in found if rope is not None))

    @property
    def rotations(self) -> tuple[tuple[Rope, int], ...]:
        """The distinct pairs of rotary embedding and elements per head that it applies to."""
        every = (each for each in self.attentions if each is not None)
        found = ((each.rope, each.rope_depth) for each in every)
        return tuple(dict.fromkeys((rope, depth) for rope, depth in found if rope is not None))

    @property
    def rope(self) -> Rope:
        """The rotary embedding of a model that has exactly one."""
        (rope,) = self.ropes
        return rope

    def with_rope(self, change: Callable[[Rope], Rope]) -> Decoder:
        """Return the model with `change` applied to the rotary embedding of every layer."""
        layers = []
        for layer in self.layers:
            attention = layer.attention
            if isinstance(attention, Cached) and attention.rope is not None:
                attention = replace(attention, rope=change(attention.rope))
            layers.append(replace(layer, attention=attention))
        return replace(self, layers=tuple(layers))

    @property
    def pages(self) -> tuple[LayerPages, ...]:
        """The kinds of pages, in the order of the layers that use them first."""
        found = Counter[CacheKind](
            (each.window, each.row)
            for each in self.attentions
            if each is not None and not (isinstance(each, SelfAttention) and each.borrows)
        )
        return tuple(LayerPages(*kind, layers) for kind, layers in found.items())

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a sequence's recurrent states, f32 [layers with states, ..], by name."""
        every = [
            layer.attention.states
            for layer in self.layers
            if isinstance(layer.attention, Recurrent)
        ]
        return {name: (len(every), *shape) for name, shape in (every or [{}])[0].items()}

    def share(self, devices: int) -> Decoder:
        """Return the share of the model that each of `devices` devices computes.

        Raises CheckpointError where heads, widths or the vocabulary do not divide among them.
        """
        if devices == 1:
            return self
        layers = tuple(
            replace(layer, attention=layer.attention.share(devices), mlp=layer.mlp.share(devices))
            for layer in self.layers
        )
        size = divided(devices, "vocab_size", self.vocab_size)
        inputs = None if self.inputs is None else self.inputs.share(devices)
        return replace(self, layers=layers, vocab_size=size, inputs=inputs)

    def with_experts_by_number(self) -> Decoder:
        """The model whose experts several devices divide by number, not by width."""
        layers = []
        for layer in self.layers:
            mlp = layer.mlp
            if isinstance(mlp, Mixture):
                mlp = replace(mlp, by_number=True)
            elif isinstance(mlp, DenseAndExperts):
                mlp = replace(mlp, experts=replace(mlp.experts, by_number=True))
            layers.append(replace(layer, mlp=mlp))
        return replace(self, layers=tuple(layers))

    def parameters(self, format_of: FormatOf, *, head: bool = False) -> Iterator[Parameter]:
        """Yield the parameters that the program reads from the checkpoint, in model order.

        head: a head that is tied to the embedding is a parameter of its own, because a quantized
        head differs from the embedding.
        """
        vocabulary, hidden = ("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size)
        yield table(EMBEDDING, vocabulary, hidden)
        if self.inputs is not None:
            yield from self.inputs.parameters("model", self.norm)
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}"
            for norm in layer.norms.names():
                yield from self.norm.parameters(f"{name}.{norm}", hidden)
            if self.residuals is not None:
                for part in (self.residuals.attention, self.residuals.mlp):
                    yield from self.residuals.parameters(f"{name}.{part}", hidden)
            heads = f"{name}.{layer.attention_name}"
            yield from layer.attention.parameters(heads, self.norm, format_of)
            yield from layer.mlp.parameters(f"{name}.{layer.mlp_name}", format_of)
            if self.inputs is not None:
                yield from self.inputs.of_layer(name, self.norm)
            if layer.scaled:
                yield vector(f"{name}.{SCALAR}", ("one", 1))
        if self.residuals is not None:
            yield from self.residuals.parameters(f"model.{self.residuals.head}", hidden)
        yield from self.norm.parameters("model.norm", hidden)
        if not self.tied or head:
            source = EMBEDDING if self.tied else HEAD
            yield matrix(HEAD, vocabulary, hidden, [source], split="rows")

    def generated(self, length: int) -> dict[str, NDArray[np.float32]]:
        """Return the computed parameters by key, such as rotary tables f32 [length, R].

        length: tokens of the longest sequence.
        """
        found = dict(self.heads.generated())
        for number, (rope, depth) in enumerate(self.rotations):
            arrays = tables(rope, depth, length)
            found |= dict(zip(rope_keys(number), arrays, strict=True))
        return found


def rope_keys(number: int) -> tuple[str, str]:
    """Return the keys of the cosine and sine tables of rotary embedding `number` of a model."""
    stem = f"rope.{number}" if number else "rope"
    return f"{stem}.cos", f"{stem}.sin"
