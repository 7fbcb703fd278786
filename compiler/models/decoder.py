"""A decoder as a record of blocks; builder.py makes the module that it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.blocks.attention import CacheKind, CacheRow
from mxc.compiler.models.blocks.dense_and_experts import DenseAndExperts
from mxc.compiler.models.blocks.devices import divided, refuse_split
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.layer_inputs import LayerInputs
from mxc.compiler.models.blocks.linear_attention import LinearAttention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import FeedForward, Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import FormatOf, Parameter, matrix, table, vector
from mxc.compiler.models.blocks.rope import Rope, tables
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.dialects.attention import Chunk, Reach

#: What a layer multiplies its result with, where it does.
SCALAR = "layer_scalar"

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

#: Attention over what pages keep of each token.
Cached = SelfAttention | LatentAttention

#: Positions of a page of keys and values: two blocks of keys of a GPU's kernels, two to four of a
#: CPU's.
PAGE = 64


@dataclass(frozen=True)
class PageKind:
    """Pages of the `layers` whose queries see the same positions, and that keep the same row."""

    reach: Reach
    row: CacheRow
    layers: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[entries, positions, V, D]."""
        return self.layers * self.row.entries, PAGE, self.row.heads, self.row.depth

    @property
    def window(self) -> int | None:
        """How many positions a token sees at most, itself included; None: all before it."""
        return self.reach.size if isinstance(self.reach, Chunk) else self.reach


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """The names of a layer's norms; None where it has no norm in that place."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    def names(self) -> Iterator[str]:
        """The norms that there are."""
        places = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        yield from (name for name in places if name is not None)


#: Norms before both parts of a layer (Llama).
PRE_NORMS = LayerNorms()
#: Norms after both parts, before they are added (OLMo 2, EXAONE 4).
POST_NORMS = LayerNorms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

    `attention_name` and `mlp_name` are those of the checkpoint. `parallel`: x +
    attention(norm(x)) + mlp(norm(x)) with one norm. `residual`: what both parts are multiplied
    with before they are added. `scaled`: what comes out is multiplied with a number of the layer,
    layer_scalar.
    """

    attention: Cached | LinearAttention
    mlp: Mlp | FeedForward | Mixture | DenseAndExperts
    mlp_name: str = "mlp"
    attention_name: str = "self_attn"
    norms: LayerNorms = PRE_NORMS
    parallel: bool = False
    residual: float = 1.0
    scaled: bool = False


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What an architecture makes of a config.

    There is one layer with a cache at least; all others have the same states.

    `embedding_scale`: what embeddings are multiplied with. `logits_scale`: what logits are
    multiplied with; `logits_cap`: they become cap * tanh(logit / cap). `eos_tokens` are those of
    config.json; a checkpoint may state others beside. `aliases`: what a part of a name may be
    called in checkpoints, and what it is called here. `next_tokens`: layers after the others that
    predict tokens after the next one, which the program does not have. `inputs`: what each layer
    gets of the tokens beside what the layer before gives.
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

    @property
    def heads(self) -> Cached:
        """The attention of the first layer with a cache."""
        return next(each for each in self.attentions if each is not None)

    @property
    def attentions(self) -> tuple[Cached | None, ...]:
        """The attention of each layer with a cache; None where it keeps a state."""
        every = (layer.attention for layer in self.layers)
        return tuple(each if isinstance(each, Cached) else None for each in every)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions of the layers, each once."""
        found = (each.rope for each in self.attentions if each is not None)
        return tuple(dict.fromkeys(rope for rope in found if rope is not None))

    @property
    def rotations(self) -> tuple[tuple[Rope, int], ...]:
        """The rotary positions with the elements of a head that they are for, each once."""
        every = (each for each in self.attentions if each is not None)
        found = ((each.rope, each.rope_depth) for each in every)
        return tuple(dict.fromkeys((rope, depth) for rope, depth in found if rope is not None))

    @property
    def rope(self) -> Rope:
        """The rotary positions of a model that has one kind of them."""
        (rope,) = self.ropes
        return rope

    def with_rope(self, change: Callable[[Rope], Rope]) -> Decoder:
        """The model with other rotary positions in all layers that have some."""
        layers = []
        for layer in self.layers:
            attention = layer.attention
            if isinstance(attention, Cached) and attention.rope is not None:
                attention = replace(attention, rope=change(attention.rope))
            layers.append(replace(layer, attention=attention))
        return replace(self, layers=tuple(layers))

    @property
    def pages(self) -> tuple[PageKind, ...]:
        """The kinds of pages, in the order in which layers have them."""
        found = Counter[CacheKind](
            (each.window, each.row)
            for each in self.attentions
            if each is not None and not (isinstance(each, SelfAttention) and each.borrows)
        )
        return tuple(PageKind(*kind, layers) for kind, layers in found.items())

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """What a sequence keeps beside its cache: shapes of f32 [layers that have some, ..]."""
        every = [
            layer.attention.states
            for layer in self.layers
            if isinstance(layer.attention, LinearAttention)
        ]
        return {name: (len(every), *shape) for name, shape in (every or [{}])[0].items()}

    def share(self, devices: int) -> Decoder:
        """What each of several devices computes; the model itself where there is one.

        Raises CheckpointError where heads, widths or the vocabulary do not divide among them, and
        for blocks that are not divided.
        """
        if devices == 1:
            return self
        if self.inputs is not None or any(layer.scaled for layer in self.layers):
            refuse_split(devices, "numbers or inputs of each layer's own (Gemma 4)")
        layers = tuple(
            replace(layer, attention=layer.attention.share(devices), mlp=layer.mlp.share(devices))
            for layer in self.layers
        )
        size = divided(devices, "vocab_size", self.vocab_size)
        return replace(self, layers=layers, vocab_size=size)

    def parameters(self, format_of: FormatOf, *, head: bool = False) -> Iterator[Parameter]:
        """What the program reads of the checkpoint, in the order of the model.

        `head`: a head that is the embedding is a parameter of its own, as one that is quantized.
        """
        vocabulary, hidden = ("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size)
        yield table(EMBEDDING, vocabulary, hidden)
        if self.inputs is not None:
            yield from self.inputs.parameters("model", self.norm)
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}"
            for norm in layer.norms.names():
                yield from self.norm.parameters(f"{name}.{norm}", hidden)
            heads = f"{name}.{layer.attention_name}"
            yield from layer.attention.parameters(heads, self.norm, format_of)
            yield from layer.mlp.parameters(f"{name}.{layer.mlp_name}", format_of)
            if self.inputs is not None:
                yield from self.inputs.of_layer(name, self.norm)
            if layer.scaled:
                yield vector(f"{name}.{SCALAR}", ("one", 1))
        yield from self.norm.parameters("model.norm", hidden)
        if not self.tied or head:
            source = EMBEDDING if self.tied else HEAD
            yield matrix(HEAD, vocabulary, hidden, [source], split="rows")

    def generated(self, length: int) -> dict[str, NDArray[np.float32]]:
        """The parameters that are computed, not read: rope tables f32 [length, R], ..

        `length`: tokens of the longest sequence.
        """
        found = dict(self.heads.generated())
        for number, (rope, depth) in enumerate(self.rotations):
            arrays = tables(rope, depth, length)
            found |= dict(zip(rope_keys(number), arrays, strict=True))
        return found


def rope_keys(number: int) -> tuple[str, str]:
    """The parameters with the cosines and sines of one of the rotary positions of a model."""
    stem = f"rope.{number}" if number else "rope"
    return f"{stem}.cos", f"{stem}.sin"
