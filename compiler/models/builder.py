"""The module of a decoder.

Its one function, `step`, is the one that `ModelRecord` describes.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.artifact.manifest import STEP
from mxc.artifact.pages import stored_positions
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.attention import Cache
from mxc.compiler.models.blocks.primitives import (
    add,
    f32,
    multiply,
    rows_of,
    scale,
    soft_cap,
)
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.scope import Memory, Scope, State
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
from mxc.dialects.pages import Pages
from mxc.dialects.parameters import NAME, Parameters
from mxc.dialects.samples import write_samples
from mxc.dialects.sizes import as_long_as
from mxc.formats.recipes import scale_recipe


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
            pools = [list(ir.RankedTensorType(each).shape) for each in memory]
            paged, longest = len(self._decoder.pages), self._options.max_sequence_length
            samples = samples_of_step(PAGE, longest, pools[:paged], pools[paged:])
            write_samples(self._module.operation, samples)
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
            (kind.reach, kind.row): Cache(Pages(pool, pages, self._options.page_format), slot)
            for kind, pool, pages, slot in zip(model.pages, pools, lists, slots, strict=True)
        }
        memory = Memory(caches, states)
        state = State(self._rotations(positions), Runs(positions, runs), places)
        x = self._scope.weights.lookup(tokens, EMBEDDING, (model.vocab_size, model.hidden_size))
        x = scale(x, model.embedding_scale)
        own = None
        if model.inputs is not None:
            own = model.inputs.build(self._scope, tokens, x, "model")
        for number, layer in enumerate(model.layers):
            x = self._layer(layer, x, number, state, memory)
            name = f"model.layers.{number}"
            if model.inputs is not None and own is not None:
                x = model.inputs.add(self._scope, x, own, number, name)
            if layer.scaled:
                factor = self._scope.weights.load(f"{name}.{SCALAR}", 1)
                x = multiply(x, factor)
        logits = self._head(rows_of(x, wanted))
        return [logits, *(cache.pages.pool for cache in caches.values()), *memory.states]

    def _rotations(self, positions: ir.Value) -> dict[tuple[Rope, int], tuple[ir.Value, ir.Value]]:
        """The rows of the rope tables that belong to the rows of this call."""
        found = {}
        for number, (rope, depth) in enumerate(self._decoder.rotations):
            width = rope.rotated(depth) // 2
            shape = [self._options.max_sequence_length, width]
            cos, sin = (
                rows_of(self._parameters.load(key, shape, f32()), positions)
                for key in rope_keys(number)
            )
            found[rope, depth] = (cos, sin)
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
    """Bytes, where keys and values are in an MX format."""
    if options.page_format is not None:
        return ir.IntegerType.get_signless(8)
    return {"f32": ir.F32Type, "bf16": ir.BF16Type}[options.kv_cache].get()


def _integers(*sizes: int | None) -> ir.Type:
    """A tensor of i32; sizes that are None come with the call."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if size is None else size for size in sizes]
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
