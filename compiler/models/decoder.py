"""A decoder as a record of blocks, and the module that it is.

The one function of the module, `step`, is the one that `ModelRecord` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.artifact.manifest import STEP
from mxc.artifact.pages import stored_positions
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.attention import Cache
from mxc.compiler.models.blocks.gated_delta_net import GatedDeltaNet
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import FeedForward, FormatOf, Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Parameter, matrix, table
from mxc.compiler.models.blocks.primitives import (
    add,
    f32,
    rows_of,
    scale,
    soft_cap,
)
from mxc.compiler.models.blocks.rope import Rope, tables
from mxc.compiler.models.blocks.scope import Memory, Scope, State
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.blocks.weights import Formats, Weights
from mxc.compiler.models.options import Options
from mxc.dialects.attention import Chunk, Reach, Runs
from mxc.dialects.context import new_context
from mxc.dialects.pages import Pages
from mxc.dialects.parameters import NAME, Parameters
from mxc.dialects.sizes import as_long_as
from mxc.formats.recipes import scale_recipe

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

#: Attention over what pages keep of each token.
Cached = SelfAttention | LatentAttention

#: Positions of a page of keys and values: two blocks of keys of a GPU's kernels, two to four of a
#: CPU's.
PAGE = 64


@dataclass(frozen=True)
class PageKind:
    """Pages of the layers whose queries see the same keys: [entries, positions, V, D]."""

    reach: Reach
    shape: tuple[int, int, int, int]

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

    @property
    def pages(self) -> tuple[PageKind, ...]:
        """The kinds of pages, in the order in which layers have them."""
        reaches = [each.window for each in self.attentions if each is not None]
        row = self.heads.row
        return tuple(
            PageKind(reach, (reaches.count(reach) * row.entries, PAGE, row.heads, row.depth))
            for reach in dict.fromkeys(reaches)
        )

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

    def generated(self, length: int) -> dict[str, NDArray[np.float32]]:
        """The parameters that are computed, not read: rope tables f32 [length, R], ..

        `length`: tokens of the longest sequence.
        """
        found = dict(self.heads.generated())
        for number, rope in enumerate(self.ropes):
            arrays = tables(rope, self.heads.rope_depth, length)
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
        """`formats`: of every parameter, by key; see weights.py. `grouped`: rows are sorted by
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
        """The module with the function `step`."""
        with self._context, ir.Location.name(self._decoder.architecture):
            rows, pages, memory = self._row_types(), self._page_types(), self._memory_types()
            places = [_integers(None)] * bool(self._decoder.states)
            inputs = [*rows, *pages, *places, *memory]
            with ir.InsertionPoint(self._module.body):
                op = ir.Operation.create(
                    "util.func",
                    attributes={
                        "sym_name": ir.StringAttr.get(STEP),
                        "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, [])),
                    },
                    regions=1,
                )
            block = op.regions[0].blocks.append(*inputs)
            with ir.InsertionPoint(block):
                results = self._step(list(block.arguments))
                observed = self._scope.weights.take_observed()
                unnamed = [ir.DictAttr.get({}) for _ in results]
                results += observed.values()
                ir.Operation.create("util.return", operands=results)
            kinds = [value.type for value in results]
            op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kinds))
            named = [ir.DictAttr.get({NAME: ir.StringAttr.get(name)}) for name in observed]
            op.attributes["res_attrs"] = ir.ArrayAttr.get(unnamed + named)
            # Memory is given to the program, which returns it: it is updated where it lies.
            consumed = ir.DictAttr.get({"iree.abi.consume": ir.UnitAttr.get()})
            given = len(inputs) - len(memory)
            op.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [ir.DictAttr.get({})] * given + [consumed] * len(memory)
            )
        return self._module

    def _row_types(self) -> list[ir.Type]:
        """tokens [T], positions [T], runs [S, 3], rows [R]: i32."""
        return [_integers(None), _integers(None), _integers(None, 3), _integers(None)]

    def _page_types(self) -> list[ir.Type]:
        """Of each kind of pages: slots [T] and lists [S, P], i32."""
        kinds = self._decoder.pages
        return [each for _ in kinds for each in (_integers(None), _integers(None, None))]

    def _memory_types(self) -> list[ir.Type]:
        """The pools of each kind of pages, as PageRecord.stored is, and those of states, f32."""
        dynamic, element = ir.ShapedType.get_dynamic_size(), _element_of_pages(self._options)
        pools = []
        for entries, positions, heads, depth in (kind.shape for kind in self._decoder.pages):
            rows = stored_positions(self._options.page_format, positions)
            shape = [dynamic, entries, rows, heads, depth]
            pools.append(ir.RankedTensorType.get(shape, element))
        states = self._decoder.states.values()
        return [*pools, *(ir.RankedTensorType.get([dynamic, *state], f32()) for state in states)]

    def _step(self, given: list[ir.Value]) -> list[ir.Value]:
        """The logits of the rows that are asked for, then the memory: see `ModelRecord`."""
        model = self._decoder
        kinds = len(model.pages)
        tokens, positions, runs, wanted, *given = given
        slots, lists, given = given[0 : 2 * kinds : 2], given[1 : 2 * kinds : 2], given[2 * kinds :]
        positions, *slots = (as_long_as(each, tokens) for each in (positions, *slots))
        places = given.pop(0) if model.states else None
        pools, states = given[:kinds], given[kinds:]
        caches = {
            kind.reach: Cache(Pages(pool, pages, self._options.page_format), slot)
            for kind, pool, pages, slot in zip(model.pages, pools, lists, slots, strict=True)
        }
        memory = Memory(caches, states)
        state = State(self._rotations(positions), Runs(positions, runs), places)
        x = self._scope.weights.lookup(tokens, EMBEDDING, (model.vocab_size, model.hidden_size))
        x = scale(x, model.embedding_scale)
        for number, layer in enumerate(model.layers):
            x = self._layer(layer, x, number, state, memory)
        logits = self._head(rows_of(x, wanted))
        return [logits, *(cache.pages.pool for cache in caches.values()), *memory.states]

    def _rotations(self, positions: ir.Value) -> dict[Rope, tuple[ir.Value, ir.Value]]:
        """The rows of the rope tables that belong to the rows of this call."""
        found = {}
        for number, rope in enumerate(self._decoder.ropes):
            width = rope.rotated(self._decoder.heads.rope_depth) // 2
            shape = [self._options.max_sequence_length, width]
            cos, sin = (
                rows_of(self._parameters.load(key, shape, f32()), positions)
                for key in _rope_keys(number)
            )
            found[rope] = (cos, sin)
        return found

    def _layer(
        self, layer: Layer, x: ir.Value, number: int, state: State, memory: Memory
    ) -> ir.Value:
        """x [T, H] -> [T, H]; the memory becomes that behind the tokens of this call."""
        name, norms = f"model.layers.{number}", layer.norms

        def norm(value: ir.Value, which: str | None) -> ir.Value:
            return value if which is None else self._scope.norm(value, f"{name}.{which}")

        normed = norm(x, norms.before_attention)
        attended = layer.attention.build(
            self._scope, normed, f"{name}.{layer.attention_name}", state, memory
        )
        y = add(x, scale(norm(attended, norms.after_attention), layer.residual))
        if not layer.parallel:
            normed = norm(y, norms.before_mlp)
        mixed = layer.mlp.build(self._scope, normed, f"{name}.{layer.mlp_name}")
        return add(y, scale(norm(mixed, norms.after_mlp), layer.residual))

    def _head(self, hidden: ir.Value) -> ir.Value:
        """hidden [T, H] -> logits [T, vocabulary]."""
        model, weights = self._decoder, self._scope.weights
        weight = HEAD if weights.has(HEAD) else EMBEDDING
        normed = weights.prepare(self._scope.norm(hidden, "model.norm"), weight)
        shape = (model.vocab_size, model.hidden_size)
        logits = scale(weights.linear(normed, "lm_head", weight, shape), model.logits_scale)
        return logits if model.logits_cap is None else soft_cap(logits, model.logits_cap)


def _element_of_pages(options: Options) -> ir.Type:
    """Bytes, where keys and values are packed."""
    if options.page_format is not None:
        return ir.IntegerType.get_signless(8)
    return {"f32": ir.F32Type, "bf16": ir.BF16Type}[options.kv_cache].get()


def _integers(*sizes: int | None) -> ir.Type:
    """A tensor of i32; sizes that are None come with the call."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if size is None else size for size in sizes]
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
