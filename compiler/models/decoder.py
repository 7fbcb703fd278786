"""A decoder as a record of blocks, and the module that it is.

The functions of the module are those that `ModelRecord` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import FormatOf, Mlp
from mxc.compiler.models.blocks.parameters import Parameter, matrix, table, vector
from mxc.compiler.models.blocks.primitives import add, embed, f32, rows_at, rows_from
from mxc.compiler.models.blocks.rope import Rope, tables
from mxc.compiler.models.blocks.scope import Scope, Span, State
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.blocks.weights import Weights
from mxc.compiler.models.options import Options
from mxc.dialects.context import new_context
from mxc.dialects.generic import shape_of
from mxc.dialects.manifest import batch_function
from mxc.dialects.parameters import Parameters
from mxc.dialects.recipes import scale_recipe

COS, SIN = "rope.cos", "rope.sin"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)); `mlp_name` in the checkpoint."""

    attention: SelfAttention
    mlp: Mlp | Mixture
    mlp_name: str = "mlp"


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What an architecture makes of a config. All layers have the same heads.

    `eos_tokens` are those of config.json; a checkpoint may state others beside. `aliases`: what a
    part of a name may be called in checkpoints, and what it is called here.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    epsilon: float
    rope: Rope
    layers: tuple[Layer, ...]
    tied: bool
    eos_tokens: tuple[int, ...]
    bos_token: int | None
    pad_token: int | None
    aliases: tuple[tuple[str, str], ...] = ()

    @property
    def heads(self) -> SelfAttention:
        """The attention of the first layer, whose heads are those of all."""
        return self.layers[0].attention

    def cache_shape(self, capacity: int) -> tuple[int, int, int, int]:
        """The cache of one sequence: [2 * layers, capacity, V, D]."""
        return (2 * len(self.layers), capacity, self.heads.shared, self.heads.depth)

    def parameters(self, format_of: FormatOf, *, head: bool = False) -> Iterator[Parameter]:
        """What the program reads of the checkpoint, in the order of the model.

        `head`: a head that is the embedding is a parameter of its own, as one that is quantised.
        """
        vocabulary, hidden = ("vocab_size", self.vocab_size), ("hidden_size", self.hidden_size)
        yield table(EMBEDDING, vocabulary, hidden)
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}"
            yield vector(f"{name}.input_layernorm.weight", hidden)
            yield from layer.attention.parameters(f"{name}.self_attn")
            yield vector(f"{name}.post_attention_layernorm.weight", hidden)
            yield from layer.mlp.parameters(f"{name}.{layer.mlp_name}", format_of)
        yield vector("model.norm.weight", hidden)
        if not self.tied or head:
            yield matrix(HEAD, vocabulary, hidden, [EMBEDDING if self.tied else HEAD])

    def generated(self, capacity: int) -> dict[str, NDArray[np.float32]]:
        """The parameters that are computed, not read: rope tables f32 [capacity, D / 2], .."""
        cos, sin = tables(self.rope, self.heads.depth, capacity)
        return {COS: cos, SIN: sin} | self.heads.generated()


class Builder:
    """Builds the functions of one model into one module."""

    def __init__(
        self,
        decoder: Decoder,
        formats: Mapping[str, str],
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
            Weights(self._parameters, formats, self._activations),
            self._activations,
            decoder.epsilon,
            grouped,
        )

    def build(self) -> ir.Module:
        """The module with prefill, decode, logits and logits_row, and decode_batch_N of each N."""
        chunk, batches = self._options.prefill_chunk, self._options.batches
        with self._context, ir.Location.name(self._decoder.architecture):
            i32 = ir.IntegerType.get_signless(32)
            cache = self.cache_type()
            hidden = ir.RankedTensorType.get([chunk, self._decoder.hidden_size], f32())
            tokens = {n: ir.RankedTensorType.get([n], i32) for n in (1, chunk, *batches)}
            self._function("prefill", [tokens[chunk], i32, cache], self._layers)
            self._function("decode", [tokens[1], i32, cache], self._decode)
            for size in batches:
                kinds = [tokens[size], *[i32] * size, *[cache] * size]
                self._function(batch_function(size), kinds, self._decode)
            self._function("logits", [hidden], lambda x: [self._head(x)])
            self._function("logits_row", [hidden, i32], self._head_of_row)
        return self._module

    def cache_type(self) -> ir.Type:
        """The cache of one sequence, of floats."""
        shape = self._decoder.cache_shape(self._options.capacity)
        return ir.RankedTensorType.get(list(shape), self._activations.float_type())

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
            ir.Operation.create("util.return", operands=results)
        kinds = [value.type for value in results]
        op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kinds))
        # The cache is given to the program, which returns it: it is updated where it lies.
        consumed = {"iree.abi.consume": ir.UnitAttr.get()}
        op.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get(consumed if kind == self.cache_type() else {}) for kind in inputs]
        )

    def _layers(self, tokens: ir.Value, *where: ir.Value) -> list[ir.Value]:
        """tokens [T] of S sequences, T / S each; `where`: S positions, S caches."""
        model = self._decoder
        sequences = len(where) // 2
        positions, caches = where[:sequences], list(where[sequences:])
        count = shape_of(tokens)[0]
        zero = attention.hidden_zero()
        starts = [arith.index_cast(ir.IndexType.get(), position) for position in positions]
        turns = [self._options.capacity, model.heads.depth // 2]
        rotations = (self._parameters.load(name, turns, f32()) for name in (COS, SIN))
        cos, sin = (
            rows_at(each, starts) if sequences > 1 else rows_from(each, starts[0], count)
            for each in rotations
        )
        spans = tuple(self._span(at, count // sequences) for at in starts)
        state = State(count, zero, cos, sin, spans)
        x = embed(tokens, self._scope.weights.load(EMBEDDING, model.vocab_size, model.hidden_size))
        for number, layer in enumerate(model.layers):
            name = f"model.layers.{number}"
            normed = self._scope.norm(x, f"{name}.input_layernorm")
            x = add(
                x,
                layer.attention.build(
                    self._scope, normed, number, f"{name}.self_attn", state, caches
                ),
            )
            normed = self._scope.norm(x, f"{name}.post_attention_layernorm")
            x = add(x, layer.mlp.build(self._scope, normed, f"{name}.{layer.mlp_name}"))
        return [x, *caches]

    def _span(self, position: ir.Value, rows: int) -> Span:
        capacity = self._options.capacity
        widths = {layer.attention.window for layer in self._decoder.layers}
        windows: dict[int | None, attention.Window] = {}
        if None in widths:
            windows[None] = attention.full_window(position, rows)
        for width in sorted(width for width in widths if width is not None):
            windows[width] = attention.sliding_window(position, rows, width, capacity)
        return Span(position, windows)

    def _decode(self, tokens: ir.Value, *where: ir.Value) -> list[ir.Value]:
        hidden, *caches = self._layers(tokens, *where)
        return [self._head(hidden), *caches]

    def _head(self, hidden: ir.Value) -> ir.Value:
        """hidden [T, H] -> logits [T, vocabulary]."""
        model, weights = self._decoder, self._scope.weights
        weight = HEAD if weights.has(HEAD) else EMBEDDING
        normed = weights.prepare(self._scope.norm(hidden, "model.norm"), weight)
        shape = (model.vocab_size, model.hidden_size)
        return weights.linear(normed, "lm_head", weight, shape)

    def _head_of_row(self, hidden: ir.Value, row: ir.Value) -> list[ir.Value]:
        at = arith.index_cast(ir.IndexType.get(), row)
        return [self._head(rows_from(hidden, at, 1))]
