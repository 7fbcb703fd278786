"""A decoder as a record of blocks, and the module that it is.

The functions of the module are those that `ModelRecord` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.artifact.manifest import batch_function
from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.gated_delta_net import GatedDeltaNet
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import FeedForward, FormatOf, Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Parameter, matrix, table
from mxc.compiler.models.blocks.primitives import (
    add,
    f32,
    rows_at,
    rows_from,
    scale,
    soft_cap,
)
from mxc.compiler.models.blocks.rope import Rope, tables
from mxc.compiler.models.blocks.scope import Memory, Scope, Span, State
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.blocks.weights import Formats, Weights
from mxc.compiler.models.options import Options
from mxc.dialects.attention import Chunk, Reach
from mxc.dialects.context import new_context
from mxc.dialects.generic import shape_of
from mxc.dialects.parameters import NAME, Parameters
from mxc.formats.recipes import scale_recipe

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

#: Attention over what the cache keeps of each token.
Cached = SelfAttention | LatentAttention


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
#: Norms behind both parts, before they are added (OLMo 2, EXAONE 4).
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
    with before they are added.
    """

    attention: Cached | GatedDeltaNet
    mlp: Mlp | FeedForward | Mixture
    mlp_name: str = "mlp"
    attention_name: str = "self_attn"
    norms: LayerNorms = PRE_NORMS
    parallel: bool = False
    residual: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What an architecture makes of a config.

    All layers with a cache keep the same of a token, and there is one at least; all others have the
    same states.

    `embedding_scale`: what embeddings are multiplied with. `logits_scale`: what logits are
    multiplied with; `logits_cap`: they become cap * tanh(logit / cap). `eos_tokens` are those of
    config.json; a checkpoint may state others beside. `aliases`: what a part of a name may be
    called in checkpoints, and what it is called here. `next_tokens`: layers behind the others that
    predict tokens after the next one, which the program does not have.
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

    @property
    def heads(self) -> Cached:
        """The attention of the first layer with a cache, whose heads are those of all."""
        return next(each for each in self.attentions if each is not None)

    @property
    def attentions(self) -> tuple[Cached | None, ...]:
        """The attention of each layer with a cache; None where it keeps a state."""
        every = (layer.attention for layer in self.layers)
        return tuple(each if isinstance(each, Cached) else None for each in every)

    @property
    def places(self) -> tuple[int, ...]:
        """Of each layer, how many of its kind are before it: its place in cache or states."""
        full = [each is not None for each in self.attentions]
        return tuple(full[:number].count(kind) for number, kind in enumerate(full))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions of the layers, each once."""
        found = (each.rope for each in self.attentions if each is not None)
        return tuple(dict.fromkeys(rope for rope in found if rope is not None))

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

    def cache_shape(self, capacity: int) -> tuple[int, int, int, int]:
        """The cache of one sequence, [entries of all layers, capacity, V, D]: see CacheRow."""
        layers, row = sum(each is not None for each in self.attentions), self.heads.row
        return (layers * row.entries, capacity, row.heads, row.depth)

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """What a sequence keeps beside its cache: shapes of f32 [layers that have some, ..]."""
        every = [
            layer.attention.states
            for layer in self.layers
            if isinstance(layer.attention, GatedDeltaNet)
        ]
        return {name: (len(every), *shape) for name, shape in (every or [{}])[0].items()}

    def parameters(self, format_of: FormatOf, *, head: bool = False) -> Iterator[Parameter]:
        """What the program reads of the checkpoint, in the order of the model.

        `head`: a head that is the embedding is a parameter of its own, as one that is quantised.
        """
        vocabulary, hidden = ("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size)
        yield table(EMBEDDING, vocabulary, hidden)
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}"
            for norm in layer.norms.names():
                yield from self.norm.parameters(f"{name}.{norm}", hidden)
            yield from layer.attention.parameters(f"{name}.{layer.attention_name}", self.norm)
            yield from layer.mlp.parameters(f"{name}.{layer.mlp_name}", format_of)
        yield from self.norm.parameters("model.norm", hidden)
        if not self.tied or head:
            yield matrix(HEAD, vocabulary, hidden, [EMBEDDING if self.tied else HEAD])

    def generated(self, capacity: int, length: int) -> dict[str, NDArray[np.float32]]:
        """The parameters that are computed, not read: rope tables f32 [capacity, R], ..

        `length`: tokens of the longest sequence.
        """
        found = dict(self.heads.generated())
        for number, rope in enumerate(self.ropes):
            arrays = tables(rope, self.heads.rope_depth, capacity, length)
            found |= dict(zip(_rope_keys(number), arrays, strict=True))
        return found


def _rope_keys(number: int) -> tuple[str, str]:
    """The parameters with the cosines and sines of one of the rotary positions of a model."""
    stem = f"rope.{number}" if number else "rope"
    return f"{stem}.cos", f"{stem}.sin"


class Builder:
    """Builds the functions of one model into one module."""

    def __init__(
        self,
        decoder: Decoder,
        formats: Formats,
        options: Options,
        *,
        grouped: bool = False,
    ) -> None:
        """`formats`: of every parameter, by key; see weights.py. `grouped`: prefill sorts rows by
        expert in the program; see experts.py."""
        self._decoder = decoder
        self._options = options
        recipe = options.activation_recipe
        self._activations = Activations(
            options.activations, options.floats, None if recipe is None else scale_recipe(recipe)
        )
        self._context = new_context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.create()
        self._parameters = Parameters(self._module)
        self._scope = Scope(
            Weights(self._parameters, formats, self._activations, observes=options.observe_inputs),
            self._activations,
            decoder.norm,
            grouped,
        )

    def build(self) -> ir.Module:
        """The module with prefill, decode, logits and logits_row, and decode_batch_N of each N."""
        chunk, batches = self._options.prefill_chunk, self._options.batches
        with self._context, ir.Location.name(self._decoder.architecture):
            i32 = ir.IntegerType.get_signless(32)
            memory = self._memory_types()
            # Of a prompt's last chunk not all rows are tokens, which states must not see.
            counts = [i32] * bool(self._decoder.states)
            hidden = ir.RankedTensorType.get([chunk, self._decoder.hidden_size], f32())
            tokens = {n: ir.RankedTensorType.get([n], i32) for n in (1, chunk, *batches)}
            self._function("prefill", [tokens[chunk], i32, *counts, *memory], self._prefill)
            self._function("decode", [tokens[1], i32, *memory], self._decode)
            for size in batches:
                kinds = [tokens[size], *[i32] * size, *memory * size]
                self._function(batch_function(size), kinds, self._decode)
            self._function("logits", [hidden], lambda x: [self._head(x)])
            self._function("logits_row", [hidden, i32], self._head_of_row)
        return self._module

    def _memory_types(self) -> list[ir.Type]:
        """What one sequence keeps: its cache, of floats, and its states."""
        shape = self._decoder.cache_shape(self._options.capacity)
        cache = ir.RankedTensorType.get(list(shape), self._activations.float_type())
        states = self._decoder.states.values()
        return [cache, *(ir.RankedTensorType.get(list(state), f32()) for state in states)]

    def _function(
        self, name: str, inputs: list[ir.Type], body: Callable[..., list[ir.Value]]
    ) -> None:
        with ir.InsertionPoint(self._module.body):
            op = ir.Operation.create(
                "util.func",
                attributes={
                    "sym_name": ir.StringAttr.get(name),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, [])),
                },
                regions=1,
            )
        block = op.regions[0].blocks.append(*inputs)
        with ir.InsertionPoint(block):
            results = body(*block.arguments)
            observed = self._scope.weights.take_observed()
            unnamed = [ir.DictAttr.get({}) for _ in results]
            results += observed.values()
            ir.Operation.create("util.return", operands=results)
        kinds = [value.type for value in results]
        op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kinds))
        named = [ir.DictAttr.get({NAME: ir.StringAttr.get(name)}) for name in observed]
        op.attributes["res_attrs"] = ir.ArrayAttr.get(unnamed + named)
        # Memory is given to the program, which returns it: it is updated where it lies.
        consumed, memory = {"iree.abi.consume": ir.UnitAttr.get()}, self._memory_types()
        op.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get(consumed if kind in memory else {}) for kind in inputs]
        )

    def _prefill(self, tokens: ir.Value, position: ir.Value, *rest: ir.Value) -> list[ir.Value]:
        """A chunk; `rest`: how many of its rows are tokens where states ask for it, the memory."""
        if not self._decoder.states:
            return self._layers(tokens, position, *rest)
        count, *memory = rest
        rows = attention.index(shape_of(tokens)[0])
        found = arith.index_cast(ir.IndexType.get(), count)
        found = arith.minsi(arith.maxsi(found, attention.index(0)), rows)
        return self._layers(tokens, position, *memory, rows=found)

    def _layers(
        self, tokens: ir.Value, *where: ir.Value, rows: ir.Value | None = None
    ) -> list[ir.Value]:
        """tokens [T] of S sequences, T / S each; `where`: S positions, then what each keeps.

        `rows`: how many of the rows are tokens, an index; None: all.
        """
        model = self._decoder
        kept = 1 + len(model.states)
        sequences = len(where) // (1 + kept)
        positions, given = where[:sequences], where[sequences:]
        memories = [
            Memory(given[start], list(given[start + 1 : start + kept]))
            for start in range(0, len(given), kept)
        ]
        count = shape_of(tokens)[0]
        zero = attention.hidden_zero()
        starts = [arith.index_cast(ir.IndexType.get(), position) for position in positions]
        spans = tuple(self._span(at, count // sequences) for at in starts)
        state = State(count, zero, self._rotations(starts, count), spans, rows)
        x = self._scope.weights.lookup(tokens, EMBEDDING, (model.vocab_size, model.hidden_size))
        x = scale(x, model.embedding_scale)
        for number, layer in enumerate(model.layers):
            x = self._layer(layer, x, number, state, memories)
        return [x, *(part for each in memories for part in (each.cache, *each.states))]

    def _rotations(
        self, starts: list[ir.Value], count: int
    ) -> dict[Rope, tuple[ir.Value, ir.Value]]:
        """The rows of the rope tables that belong to the `count` rows of this call."""

        def rows(key: str, width: int) -> ir.Value:
            table = self._parameters.load(key, [self._options.capacity, width], f32())
            if len(starts) > 1:
                return rows_at(table, starts)
            return rows_from(table, starts[0], count)

        found = {}
        for number, rope in enumerate(self._decoder.ropes):
            width = rope.rotated(self._decoder.heads.rope_depth) // 2
            cos, sin = (rows(key, width) for key in _rope_keys(number))
            found[rope] = (cos, sin)
        return found

    def _layer(
        self, layer: Layer, x: ir.Value, number: int, state: State, memories: list[Memory]
    ) -> ir.Value:
        """x [T, H] -> [T, H]; the memories become those behind the tokens of this call."""
        name, norms = f"model.layers.{number}", layer.norms

        def norm(value: ir.Value, which: str | None) -> ir.Value:
            return value if which is None else self._scope.norm(value, f"{name}.{which}")

        normed = norm(x, norms.before_attention)
        place = self._decoder.places[number]
        attended = layer.attention.build(
            self._scope, normed, place, f"{name}.{layer.attention_name}", state, memories
        )
        y = add(x, scale(norm(attended, norms.after_attention), layer.residual))
        if not layer.parallel:
            normed = norm(y, norms.before_mlp)
        mixed = layer.mlp.build(self._scope, normed, f"{name}.{layer.mlp_name}")
        return add(y, scale(norm(mixed, norms.after_mlp), layer.residual))

    def _span(self, position: ir.Value, rows: int) -> Span:
        capacity = self._options.capacity
        windows: dict[Reach, attention.Window] = {}
        for reach in dict.fromkeys(each.window for each in self._decoder.attentions if each):
            if reach is None:
                windows[reach] = attention.full_window(position, rows)
            elif isinstance(reach, Chunk):
                windows[reach] = attention.chunk_window(position, rows, reach, capacity)
            else:
                windows[reach] = attention.sliding_window(position, rows, reach, capacity)
        return Span(position, windows)

    def _decode(self, tokens: ir.Value, *where: ir.Value) -> list[ir.Value]:
        hidden, *memory = self._layers(tokens, *where)
        return [self._head(hidden), *memory]

    def _head(self, hidden: ir.Value) -> ir.Value:
        """hidden [T, H] -> logits [T, vocabulary]."""
        model, weights = self._decoder, self._scope.weights
        weight = HEAD if weights.has(HEAD) else EMBEDDING
        normed = weights.prepare(self._scope.norm(hidden, "model.norm"), weight)
        shape = (model.vocab_size, model.hidden_size)
        logits = scale(weights.linear(normed, "lm_head", weight, shape), model.logits_scale)
        return logits if model.logits_cap is None else soft_cap(logits, model.logits_cap)

    def _head_of_row(self, hidden: ir.Value, row: ir.Value) -> list[ir.Value]:
        at = arith.index_cast(ir.IndexType.get(), row)
        return [self._head(rows_from(hidden, at, 1))]
