"""Per-layer inputs: embeddings of each token that are added inside every layer (Gemma 4).

Letters: T rows of this call, L layers, P elements per layer.

Source: transformers' models/gemma4 (5.23), get_per_layer_inputs and project_per_layer_inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.mlp import linears
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Parameter, matrix, table
from mxc.compiler.models.blocks.primitives import add, expand, f32, scale, slice_of
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import constant, generic, shape_of

_TABLE, _PROJECTION = "embed_tokens_per_layer.weight", "per_layer_model_projection"
_NORM = "per_layer_projection_norm"
#: Names, after a layer's name, of the modules with its weights.
_GATE, _BACK, _BEHIND = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """`width` elements per token and layer, from a row of a table and a projected embedding.

    A layer adds norm(back(activation(gate(x)) * input)) to its result x. `vocabulary`: rows of the
    table.
    """

    vocabulary: int
    hidden: int
    layers: int
    width: int
    activation: Callable[[ir.Value], ir.Value]

    def parameters(self, name: str, norm: Norm) -> Iterator[Parameter]:
        """Yield the parameters that all layers share; `name`: the model's name."""
        each = ("hidden_size_per_layer_input", self.width)
        all_layers = (f"num_hidden_layers * {each[0]}", self.layers * self.width)
        yield table(f"{name}.{_TABLE}", ("vocab_size_per_layer_input", self.vocabulary), all_layers)
        yield matrix(f"{name}.{_PROJECTION}.weight", all_layers, ("hidden_size", self.hidden))
        yield from norm.parameters(f"{name}.{_NORM}", each)

    def of_layer(self, name: str, norm: Norm) -> Iterator[Parameter]:
        """Yield the parameters of the layer `name`."""
        each, hidden = ("hidden_size_per_layer_input", self.width), ("hidden_size", self.hidden)
        yield matrix(f"{name}.{_GATE}.weight", each, hidden)
        yield matrix(f"{name}.{_BACK}.weight", hidden, each)
        yield from norm.parameters(f"{name}.{_BEHIND}", hidden)

    def share(self, devices: int) -> LayerInputs:
        """Return each device's share: some rows of the table, and all of the rest.

        Raises CheckpointError where the rows do not divide.
        """
        field = "vocab_size_per_layer_input"
        return replace(self, vocabulary=divided(devices, field, self.vocabulary))

    def build(self, scope: Scope, tokens: ir.Value, x: ir.Value, name: str) -> Steps:
        """Build the inputs [T, L, P] of tokens i32 [T], whose embeddings are x [T, H]."""
        size = self.layers * self.width
        (context,) = linears(scope, x, [f"{name}.{_PROJECTION}"], (size, self.hidden))
        with ir.Location.name(f"{name}.{_PROJECTION}"):
            table, first = (self.vocabulary, size), scope.device.first_of(self.vocabulary)
            rows = yield scope.weights.lookup(tokens, f"{name}.{_TABLE}", table, first)
            context = scale(context, self.hidden**-0.5)
            context, rows = (
                expand(part, [[0], [1, 2]], [shape_of(x)[0], self.layers, self.width])
                for part in (context, rows)
            )
        context = scope.norm(context, f"{name}.{_NORM}")

        def mixed(a: ir.Value, b: ir.Value) -> ir.Value:
            own = arith.mulf(b, constant(self.width**0.5, f32()))
            return arith.mulf(arith.addf(a, own), constant(2**-0.5, f32()))

        return generic([(context, "m l k"), (rows, "m l k")], "m l k", f32(), mixed)

    def add(self, scope: Scope, x: ir.Value, own: ir.Value, layer: int, name: str) -> ir.Value:
        """Add the input of the layer `name`, own [T, layer, P], to its result x [T, H]."""
        (gate,) = linears(scope, x, [f"{name}.{_GATE}"], (self.width, self.hidden))
        inner = generic(
            [(gate, "m k"), (slice_of(own, 1, layer), "m k")],
            "m k",
            f32(),
            lambda a, b: arith.mulf(self.activation(a), b),
        )
        (y,) = linears(scope, inner, [f"{name}.{_BACK}"], (self.hidden, self.width))
        return add(x, scope.norm(y, f"{name}.{_BEHIND}"))
