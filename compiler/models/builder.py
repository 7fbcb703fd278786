"""Builds the MLIR module of a decoder, for one device or for several that compute it together.

The module's only function is `step`, which `ModelRecord` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iree.compiler import ir

from mxc.artifact.manifest import STEP
from mxc.artifact.pages import stored_positions
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.attention import Cache
from mxc.compiler.models.blocks.devices import (
    Steps,
    devices_of,
    on_each,
    summed,
    together,
)
from mxc.compiler.models.blocks.primitives import (
    add,
    f32,
    multiply,
    rows_of,
    scale,
    soft_cap,
)
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.compiler.models.blocks.weights import Formats, Weights
from mxc.compiler.models.decoder import (
    EMBEDDING,
    HEAD,
    PAGE,
    SCALAR,
    Decoder,
    Layer,
    rope_keys,
)
from mxc.compiler.models.options import Options
from mxc.compiler.models.samples import samples_of_step
from mxc.dialects.attention import Runs
from mxc.dialects.context import new_context
from mxc.dialects.devices import ABI_AFFINITY
from mxc.dialects.pages import Pages
from mxc.dialects.parameters import NAME, Parameters
from mxc.dialects.samples import write_samples
from mxc.dialects.sizes import as_long_as
from mxc.formats.recipes import scale_recipe
from mxc.targets.gpu import GroupRows


class Builder:
    """Builds the functions of one model into one module."""

    def __init__(
        self,
        decoder: Decoder,
        formats: Formats,
        options: Options,
        group_rows: GroupRows = (),
    ) -> None:
        """formats: the format of every parameter, by key; see weights.py. group_rows: see
        scope.py."""
        self._decoder = decoder.share(options.devices)
        self._devices = devices_of(options.devices)
        self._options = options
        recipe = options.activation_recipe
        activations = Activations(
            options.activations, options.floats, None if recipe is None else scale_recipe(recipe)
        )
        self._context = new_context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.create()
            self._scopes = [
                Scope(
                    Weights(
                        Parameters(self._module, device.affinity),
                        formats,
                        activations,
                        observes=options.observe_inputs,
                    ),
                    activations,
                    decoder.norm,
                    group_rows,
                    device,
                )
                for device in self._devices
            ]

    def build(self) -> ir.Module:
        """Build the module with the function `step`."""
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
                observed = self._scopes[0].weights.take_observed()
                count = len(self._devices)
                returned = [*self._on_devices(count), *self._on_devices(len(memory))]
                results += observed.values()
                ir.Operation.create("util.return", operands=results)
            kinds = [value.type for value in results]
            op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kinds))
            named = [{NAME: ir.StringAttr.get(name)} for name in observed]
            op.attributes["res_attrs"] = _attributes([*returned, *named])
            # The program consumes and returns the memory, so that it is updated in place.
            consumed = {"iree.abi.consume": ir.UnitAttr.get()}
            op.attributes["arg_attrs"] = _attributes(
                [
                    *self._on(0, len(inputs) - len(memory)),
                    *({**each, **consumed} for each in self._on_devices(len(memory))),
                ]
            )
            count = len(memory) // len(self._devices)
            pools = [list(ir.RankedTensorType(each).shape) for each in memory[:count]]
            paged, longest = len(self._decoder.pages), self._options.max_sequence_length
            samples = samples_of_step(
                PAGE, longest, pools[:paged], pools[paged:], len(self._devices)
            )
            write_samples(self._module.operation, samples)
        return self._module

    def _on(self, device: int, count: int) -> list[dict[str, ir.Attribute]]:
        """Return the attributes of `count` arguments or results on device number `device`."""
        affinity = self._devices[device].affinity
        return [{} if affinity is None else {ABI_AFFINITY: affinity}] * count

    def _on_devices(self, count: int) -> list[dict[str, ir.Attribute]]:
        """Return the attributes of `count` arguments or results, as many on each device."""
        each = count // len(self._devices)
        return [found for number in range(len(self._devices)) for found in self._on(number, each)]

    def _row_types(self) -> list[ir.Type]:
        """Return the types of tokens [T], positions [T], runs [S, 3] and rows [R], i32."""
        return [_integers(None), _integers(None), _integers(None, 3), _integers(None)]

    def _page_types(self) -> list[ir.Type]:
        """Return the types of slots [T] and lists [S, P], i32, of each kind of pages."""
        kinds = self._decoder.pages
        return [each for _ in kinds for each in (_integers(None), _integers(None, None))]

    def _memory_types(self) -> list[ir.Type]:
        """Return the types of each device's pools: of each kind of pages (PageRecord.stored), and
        of states, f32."""
        dynamic, element = ir.ShapedType.get_dynamic_size(), _element_of_pages(self._options)
        pools = []
        for entries, positions, heads, depth in (kind.shape for kind in self._decoder.pages):
            rows = stored_positions(self._options.page_format, positions)
            shape = [dynamic, entries, rows, heads, depth]
            pools.append(ir.RankedTensorType.get(shape, element))
        states = [
            ir.RankedTensorType.get([dynamic, *state], f32())
            for state in self._decoder.states.values()
        ]
        return [*pools, *states] * len(self._devices)

    def _step(self, given: list[ir.Value]) -> list[ir.Value]:
        """Build the logits of the wanted rows, then the updated memory; see `ModelRecord`."""
        model, devices = self._decoder, self._devices
        kept = len(model.pages) + len(model.states)
        rows = len(given) - kept * len(devices)
        each = zip(*(on_each(value, devices) for value in given[:rows]), strict=True)
        pools = [given[rows + kept * number :][:kept] for number in range(len(devices))]
        calls = [
            self._call(scope, list(own), memory)
            for scope, own, memory in zip(self._scopes, each, pools, strict=True)
        ]
        found = summed(
            [self._embedded(call) for call in calls],
            devices,
        )
        xs = [scale(x, model.embedding_scale) for x in found]
        inputs = self._layer_inputs(calls, xs)
        for number, layer in enumerate(model.layers):
            xs = self._layer(layer, xs, number, calls)
            xs = [
                self._scaled(layer, self._with_input(call, own, x, number), call.scope, number)
                for call, own, x in zip(calls, inputs, xs, strict=True)
            ]
        if model.residuals is not None:
            xs = self._read(calls, xs, f"model.{model.residuals.head}")
        logits = [self._logits(call, x) for call, x in zip(calls, xs, strict=True)]
        return [*logits, *(value for call in calls for value in call.memory.values)]

    def _call(self, scope: Scope, given: list[ir.Value], memory: list[ir.Value]) -> _Call:
        """Return the arguments of `step` as the layers on one device read them."""
        model = self._decoder
        kinds = len(model.pages)
        tokens, positions, runs, wanted, *given = given
        slots, lists, given = given[0 : 2 * kinds : 2], given[1 : 2 * kinds : 2], given[2 * kinds :]
        positions, *slots = (as_long_as(each, tokens) for each in (positions, *slots))
        places = given.pop(0) if model.states else None
        caches = {
            (kind.reach, kind.row): Cache(Pages(pool, pages, self._options.page_format), slot)
            for kind, pool, pages, slot in zip(model.pages, memory, lists, slots, strict=False)
        }
        state = StepValues(self._rotations(scope, positions), Runs(positions, runs), places)
        return _Call(scope, tokens, wanted, state, SequenceMemory(caches, memory[kinds:]))

    def _embedded(self, call: _Call) -> ir.Value:
        """Look up the embeddings of the tokens, f32 [T, H].

        One of several devices has only some rows of the table; for other tokens it gives zeros.
        """
        model, device = self._decoder, call.scope.device
        first = device.first_of(model.vocab_size)
        key, shape = f"{device.prefix}{EMBEDDING}", (model.vocab_size, model.hidden_size)
        return call.scope.weights.lookup(call.tokens, key, shape, first)

    def _layer_inputs(self, calls: list[_Call], xs: list[ir.Value]) -> Sequence[ir.Value | None]:
        """Build the per-layer inputs of the tokens, of embeddings x [T, H], on each device."""
        inputs = self._decoder.inputs
        if inputs is None:
            return [None] * len(xs)
        blocks = [
            inputs.build(call.scope, call.tokens, x, f"{call.scope.prefix}model")
            for call, x in zip(calls, xs, strict=True)
        ]
        return together(blocks, self._devices)

    def _with_input(self, call: _Call, own: ir.Value | None, x: ir.Value, number: int) -> ir.Value:
        """Add the per-layer input of layer `number` to x [T, H], if the model has such inputs."""
        inputs = self._decoder.inputs
        if inputs is None or own is None:
            return x
        name = f"{call.scope.prefix}model.layers.{number}"
        return inputs.add(call.scope, x, own, number, name)

    def _scaled(self, layer: Layer, x: ir.Value, scope: Scope, number: int) -> ir.Value:
        """Multiply x [T, H] by the scalar of a layer, if the layer has one."""
        if not layer.scaled:
            return x
        name = f"{scope.prefix}model.layers.{number}.{SCALAR}"
        return multiply(x, scope.weights.load(name, 1))

    def _rotations(
        self, scope: Scope, positions: ir.Value
    ) -> dict[tuple[Rope, int], tuple[ir.Value, ir.Value]]:
        """Return the rows cos and sin of the rotary tables at the positions of this call."""
        found = {}
        for number, (rope, depth) in enumerate(self._decoder.rotations):
            shape = (self._options.max_sequence_length, rope.rotated(depth) // 2)
            cos, sin = (
                rows_of(scope.weights.load(f"{scope.prefix}{key}", *shape), positions)
                for key in rope_keys(number)
            )
            found[rope, depth] = (cos, sin)
        return found

    def _read(self, calls: list[_Call], xs: list[ir.Value], name: str) -> list[ir.Value]:
        """Build the mixture `name` of attention residuals, with x [T, H] as the last value."""
        residuals, width = self._decoder.residuals, self._decoder.hidden_size
        assert residuals is not None
        return [
            residuals.build(call.scope, [*call.blocks, x], f"{call.scope.prefix}{name}", width)
            for call, x in zip(calls, xs, strict=True)
        ]

    def _layer(
        self, layer: Layer, xs: list[ir.Value], number: int, calls: list[_Call]
    ) -> list[ir.Value]:
        """Build a layer: x [T, H] on each device -> [T, H]; the memory of `calls` is updated."""
        norms, devices = layer.norms, self._devices
        names = [f"{device.prefix}model.layers.{number}" for device in devices]

        def norm(values: list[ir.Value], which: str | None) -> list[ir.Value]:
            if which is None:
                return values
            return [
                call.scope.norm(value, f"{name}.{which}")
                for call, value, name in zip(calls, values, names, strict=True)
            ]

        def added(values: list[ir.Value], blocks: list[Steps], after: str | None) -> list[ir.Value]:
            wholes = norm(together(blocks, devices), after)
            scaled = [scale(whole, layer.residual) for whole in wholes]
            return [add(*pair) for pair in zip(values, scaled, strict=True)] if values else scaled

        residuals = self._decoder.residuals
        read = xs
        if residuals is not None:
            read = self._read(calls, xs, f"model.layers.{number}.{residuals.attention}")
            if residuals.begins(number):
                for call, x in zip(calls, xs, strict=True):
                    call.blocks.append(x)
                xs = []
        normed = norm(read, norms.before_attention)
        attended = [
            layer.attention.build(
                call.scope, x, f"{name}.{layer.attention_name}", call.state, call.memory
            )
            for call, x, name in zip(calls, normed, names, strict=True)
        ]
        ys = added(xs, attended, norms.after_attention)
        if not layer.parallel:
            read = ys
            if residuals is not None:
                read = self._read(calls, ys, f"model.layers.{number}.{residuals.mlp}")
            normed = norm(read, norms.before_mlp)
        mixed = [
            layer.mlp.build(call.scope, x, f"{name}.{layer.mlp_name}")
            for call, x, name in zip(calls, normed, names, strict=True)
        ]
        return added(ys, mixed, norms.after_mlp)

    def _logits(self, call: _Call, x: ir.Value) -> ir.Value:
        """x [T, H] -> logits of the wanted rows [R, vocabulary].

        One of several devices computes the logits of its part of the vocabulary.
        """
        model, scope = self._decoder, call.scope
        weights, prefix = scope.weights, scope.prefix
        weight = next(
            key for key in (f"{prefix}{HEAD}", f"{prefix}{EMBEDDING}") if weights.has(key)
        )
        rows = rows_of(x, call.wanted)
        normed = weights.prepare(scope.norm(rows, f"{prefix}model.norm"), weight)
        shape = (model.vocab_size, model.hidden_size)
        logits = weights.linear(normed, f"{prefix}lm_head", weight, shape)
        logits = scale(logits, model.logits_scale)
        return logits if model.logits_cap is None else soft_cap(logits, model.logits_cap)


@dataclass(frozen=True)
class _Call:
    """A call on one device: weights (`scope`), tokens i32 [T], the rows whose logits are wanted
    i32 [R], positions and runs (`state`), and the memory. `blocks`: the values f32 [T, H] before
    the blocks of attention residuals."""

    scope: Scope
    tokens: ir.Value
    wanted: ir.Value
    state: StepValues
    memory: SequenceMemory
    blocks: list[ir.Value] = field(default_factory=list)


def _attributes(each: list[dict[str, ir.Attribute]]) -> ir.Attribute:
    """Return the array of attribute dictionaries, one for each argument or result."""
    return ir.ArrayAttr.get([ir.DictAttr.get(found) for found in each])


def _element_of_pages(options: Options) -> ir.Type:
    """Return the element type of pages: i8 for packed formats, else that of the KV cache."""
    if options.page_format is not None:
        return ir.IntegerType.get_signless(8)
    return {"f32": ir.F32Type, "bf16": ir.BF16Type}[options.kv_cache].get()


def _integers(*sizes: int | None) -> ir.Type:
    """Return a tensor type of i32; sizes that are None are dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if size is None else size for size in sizes]
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
