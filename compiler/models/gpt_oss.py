"""gpt-oss: from a checkpoint's configuration and tensor types to a module, without its weights.

Source of the architecture: openai/gpt-oss (gpt_oss/torch/model.py) and transformers'
models/gpt_oss. The functions of the module are those that `ModelRecord` describes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math
from numpy.typing import NDArray

from mxc.compiler.checkpoints.gpt_oss_config import GptOssConfig
from mxc.compiler.models import attention, experts
from mxc.compiler.models.activations import Activations, Blocks
from mxc.compiler.models.blocks import (
    add,
    collapse,
    embed,
    expand,
    f32,
    joined,
    rms_norm,
    rotate,
    rows_at,
    rows_from,
)
from mxc.compiler.models.options import Options
from mxc.compiler.models.rope import yarn_tables
from mxc.compiler.models.weights import Weights
from mxc.dialects.context import new_context
from mxc.dialects.formats import FORMATS
from mxc.dialects.generic import constant, shape_of
from mxc.dialects.manifest import batch_function
from mxc.dialects.parameters import Parameters

COS, SIN = "rope.cos", "rope.sin"


def generated_tensors(config: GptOssConfig, options: Options) -> dict[str, NDArray[np.float32]]:
    """The parameters that are computed, not read: rope tables f32 [capacity, head_dim / 2]."""
    cos, sin = yarn_tables(
        config.rope_theta, config.rope_scaling, config.head_dim, options.capacity
    )
    return {COS: cos, SIN: sin}


@dataclass(frozen=True)
class Span:
    """Where the rows of one sequence stand: the first at `position`, an index.

    `windows` are the keys that they look at, by the type of the layer.
    """

    position: ir.Value
    windows: dict[str, attention.Window]


@dataclass(frozen=True)
class State:
    """What the layers of one call share: `cos` and `sin` [T, D / 2] of its T rows.

    The rows are those of the sequences one after the other, equally many of each in `spans`.
    """

    tokens: int
    zero: ir.Value
    cos: ir.Value
    sin: ir.Value
    spans: tuple[Span, ...]


class GptOssBuilder:
    """Builds the functions of one gpt-oss model into one module."""

    def __init__(
        self,
        config: GptOssConfig,
        dtypes: dict[str, str],
        options: Options,
        *,
        grouped: bool = False,
    ) -> None:
        """`dtypes`: safetensors dtype of every dense tensor, by name. `grouped`: prefill sorts
        rows by expert in the program; see experts.py."""
        self._grouped = grouped
        self._config = config
        self._options = options
        self._activations = Activations(options.activations, options.floats)
        self._context = new_context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.create()
        self._parameters = Parameters(self._module)
        self._weights = Weights(self._parameters, dtypes, self._activations, options.dense_format)

    def build(self) -> ir.Module:
        """The module with prefill, decode, logits and logits_row, and decode_batch_N of each N."""
        chunk, batches = self._options.prefill_chunk, self._options.batches
        with self._context, ir.Location.name("gpt_oss"):
            i32 = ir.IntegerType.get_signless(32)
            cache = self.cache_type()
            hidden = ir.RankedTensorType.get([chunk, self._config.hidden_size], f32())
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
        """The cache of one sequence: [2 * layers, capacity, V, D] of floats."""
        c = self._config
        shape = [2 * c.num_hidden_layers, self._options.capacity]
        shape += [c.num_key_value_heads, c.head_dim]
        return ir.RankedTensorType.get(shape, self._activations.float_type())

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
        c = self._config
        sequences = len(where) // 2
        positions, caches = where[:sequences], list(where[sequences:])
        count = shape_of(tokens)[0]
        zero = attention.hidden_zero()
        starts = [arith.index_cast(ir.IndexType.get(), position) for position in positions]
        turns = [self._options.capacity, c.head_dim // 2]
        tables = (self._parameters.load(name, turns, f32()) for name in (COS, SIN))
        cos, sin = (
            rows_at(table, starts) if sequences > 1 else rows_from(table, starts[0], count)
            for table in tables
        )
        spans = tuple(self._span(at, count // sequences) for at in starts)
        state = State(count, zero, cos, sin, spans)
        x = embed(
            tokens, self._weights.load("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
        )
        for layer in range(c.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            normed = self._norm(x, f"{prefix}.input_layernorm")
            mixed = self._attention(normed, layer, state, caches)
            x = add(x, mixed)
            normed = self._norm(x, f"{prefix}.post_attention_layernorm")
            x = add(x, self._experts(normed, f"{prefix}.mlp"))
        return [x, *caches]

    def _span(self, position: ir.Value, rows: int) -> Span:
        width, capacity = self._config.sliding_window, self._options.capacity
        windows = {
            "full_attention": attention.full_window(position, rows),
            "sliding_attention": attention.sliding_window(position, rows, width, capacity),
        }
        return Span(position, windows)

    def _decode(self, tokens: ir.Value, *where: ir.Value) -> list[ir.Value]:
        hidden, *caches = self._layers(tokens, *where)
        return [self._head(hidden), *caches]

    def _head(self, hidden: ir.Value) -> ir.Value:
        """hidden [T, H] -> logits [T, vocabulary]."""
        c = self._config
        normed = self._weights.prepare(self._norm(hidden, "model.norm"))
        weight = "lm_head.weight"
        # A tied head that is quantised is a copy of its own: the embedding keeps its type.
        if c.tie_word_embeddings and self._options.dense_format is None:
            weight = "model.embed_tokens.weight"
        return self._weights.linear(normed, "lm_head", weight, (c.vocab_size, c.hidden_size))

    def _head_of_row(self, hidden: ir.Value, row: ir.Value) -> list[ir.Value]:
        at = arith.index_cast(ir.IndexType.get(), row)
        return [self._head(rows_from(hidden, at, 1))]

    def _norm(self, x: ir.Value, name: str) -> ir.Value:
        weight = self._weights.load(f"{name}.weight", shape_of(x)[1])
        with ir.Location.name(name):
            return rms_norm(x, weight, self._config.rms_norm_eps)

    def _attention(self, x: ir.Value, layer: int, state: State, caches: list[ir.Value]) -> ir.Value:
        """x [T, H] -> [T, H]; the caches in the list become those with the new keys and values."""
        c = self._config
        name = f"model.layers.{layer}.self_attn"
        heads, shared = c.num_attention_heads, c.num_key_value_heads
        group, depth = heads // shared, c.head_dim
        bias = c.attention_bias
        with ir.Location.name(name):
            prepared = self._weights.prepare(x)
        q, k, v = (
            self._linear(prepared, f"{name}.{part}_proj", (count * depth, c.hidden_size), bias)
            for part, count in (("q", heads), ("k", shared), ("v", shared))
        )
        with ir.Location.name(name):
            q = rotate(q, heads, state.cos, state.sin)
            k = rotate(k, shared, state.cos, state.sin)
            v = expand(v, [[0], [1, 2]], [state.tokens, shared, depth])
            q = expand(q, [[0], [1, 2], [3]], [state.tokens, shared, group, depth])
            k, v = (attention.as_cached(rows, caches[0]) for rows in (k, v))
            sinks = expand(self._weights.load(f"{name}.sinks", heads), [[0, 1]], [shared, group])
            mixed = joined(
                [
                    self._attend(part, sinks, layer, state.zero, span, caches, number)
                    for number, (span, part) in enumerate(
                        zip(state.spans, _parts((q, k, v), len(state.spans)), strict=True)
                    )
                ]
            )
            mixed = self._weights.prepare(collapse(mixed, [[0], [1, 2, 3]]))
        shape = (c.hidden_size, heads * depth)
        return self._linear(mixed, f"{name}.o_proj", shape, bias)

    def _attend(
        self,
        rows: tuple[ir.Value, ...],
        sinks: ir.Value,
        layer: int,
        zero: ir.Value,
        span: Span,
        caches: list[ir.Value],
        number: int,
    ) -> ir.Value:
        """Attention of the queries, keys and values `rows` of the sequence of this number."""
        queries, *new = rows
        window = span.windows[self._config.layer_types[layer]]
        for entry, part in enumerate(new, start=2 * layer):
            caches[number] = attention.write_cache(caches[number], entry, span.position, part)
        keys, values = (
            attention.read_cache(caches[number], zero, entry, window)
            for entry in (2 * layer, 2 * layer + 1)
        )
        scale = self._config.head_dim**-0.5
        return attention.attend(queries, keys, values, sinks, span.position, window, scale)

    def _linear(
        self, x: Blocks | ir.Value, name: str, shape: tuple[int, int], bias: bool = True
    ) -> ir.Value:
        shift = f"{name}.bias" if bias else None
        return self._weights.linear(x, name, f"{name}.weight", shape, shift)

    def _experts(self, x: ir.Value, name: str) -> ir.Value:
        c = self._config
        # In every mode: see activations.py.
        floats = self._activations.round(x)
        logits = self._linear(floats, f"{name}.router", (c.num_local_experts, c.hidden_size))
        with ir.Location.name(f"{name}.experts"):
            shares, chosen = experts.route(logits, c.num_experts_per_tok)
            if self._grouped and shape_of(x)[0] > 1:
                groups = experts.group_by_expert(chosen, c.num_local_experts)
            else:
                groups = experts.one_group_a_pair(chosen)
            rows = experts.group_rows(self._activations.blocks(x), groups)
            gate_up = self._expert_linear(
                rows, groups, f"{name}.experts.gate_up_proj", 2 * c.intermediate_size, c.hidden_size
            )
            inner = self._activations.blocks(experts.gated(gate_up, self._swiglu))
            out = self._expert_linear(
                inner, groups, f"{name}.experts.down_proj", c.hidden_size, c.intermediate_size
            )
            return experts.combine(out, shares, groups)

    def _expert_linear(
        self, x: Blocks, groups: experts.Groups, name: str, outputs: int, depth: int
    ) -> ir.Value:
        count = self._config.num_local_experts
        weights = self._weights.blocked(name, FORMATS["mxfp4"], [count, outputs], depth)
        bias = self._weights.load(f"{name}_bias", count, outputs)
        return experts.expert_linear(x, groups, weights, bias, name)

    def _swiglu(self, gate: ir.Value, up: ir.Value) -> ir.Value:
        """(up + 1) * gate * sigmoid(alpha gate), gate at most and up within +-limit."""
        limit = constant(self._config.swiglu_limit, f32())
        gate = arith.minimumf(gate, limit)
        up = arith.maximumf(arith.minimumf(up, limit), arith.negf(limit))
        one = constant(1.0, f32())
        growth = math.exp(arith.negf(arith.mulf(gate, constant(self._config.swiglu_alpha, f32()))))
        sigmoid = arith.divf(one, arith.addf(one, growth))
        return arith.mulf(arith.addf(up, one), arith.mulf(gate, sigmoid))


def _parts(values: tuple[ir.Value, ...], count: int) -> Iterator[tuple[ir.Value, ...]]:
    """The rows of each of `count` sequences, of every value."""
    if count == 1:
        yield values
        return
    for number in range(count):
        yield tuple(rows_from(value, attention.index(number), 1) for value in values)
