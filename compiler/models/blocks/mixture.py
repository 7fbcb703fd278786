"""The mixture of experts of a layer: a router, and an MLP per expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks import experts
from mxc.compiler.models.blocks.activations import BlockActivations
from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.expert_tensors import EACH, ExpertTensors
from mxc.compiler.models.blocks.experts import ExpertWeight, Groups
from mxc.compiler.models.blocks.gates import Activation, gated, sigmoid, silu
from mxc.compiler.models.blocks.mlp import Mlp, SummedOverDevices, linears
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import (
    CheckpointRows,
    Dim,
    FormatOf,
    Parameter,
    Split,
    matrix,
    vector,
)
from mxc.compiler.models.blocks.primitives import (
    add,
    add_bias,
    collapse,
    expand,
    f32,
    linear,
    parts_of,
    rows_here,
)
from mxc.compiler.models.blocks.routing import CHOSEN, Routing
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import constant, element_of, fill, generic, shape_of
from mxc.dialects.named_operations import PRODUCT
from mxc.dialects.routes import MOST_BYTES, route
from mxc.dialects.row_norms import is_row_norm
from mxc.dialects.sizes import sizes_of
from mxc.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """A shared expert: an MLP that is computed for every token, beside the chosen experts.

    `gate`: the name of a weight [1, H]; the sigmoid of its product with x multiplies the result of
    the MLP. None for no such factor.
    """

    mlp: Mlp
    name: str
    gate: str | None = None


@dataclass(frozen=True, kw_only=True)
class LatentSpace:
    """A space of `size` dimensions in which experts compute, after and before a projection.

        up(norm(experts(down(x))))

    Router and shared expert read x. Source: the code in moonshotai/Kimi-K3.
    """

    size: int
    norm: Norm

    down: ClassVar[str] = "routed_expert_down_proj"
    norm_name: ClassVar[str] = "routed_expert_norm"
    up: ClassVar[str] = "routed_expert_up_proj"
    field: ClassVar[str] = "routed_expert_hidden_size"

    def parameters(self, name: str, hidden: Dim) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`."""
        size = (self.field, self.size)
        yield matrix(f"{name}.{self.down}.weight", size, hidden)
        yield from self.norm.parameters(f"{name}.{self.norm_name}", size)
        yield matrix(f"{name}.{self.up}.weight", hidden, size, split="columns")

    def leave(self, scope: Scope, x: ir.Value, name: str, hidden: int) -> ir.Value:
        """up(norm(x)) of x [T, L]: this device's addend [T, H]."""
        count = scope.device.count
        normed = self.norm.build(scope.weights, x, f"{name}.{self.norm_name}", named=scope.on_gpu)
        part = self.size // count
        if count > 1:
            normed = parts_of(normed, [part] * count)[scope.device.number]
        (y,) = linears(scope, normed, [f"{name}.{self.up}"], (hidden, part))
        return y


@dataclass(frozen=True, kw_only=True)
class Mixture(SummedOverDevices):
    """The sum of `choices` of `experts` MLPs of width `width`, weighted by their shares.

    `router`: the router's name. `routing`: how its logits become shares. `tensors`: how the
    checkpoint stores the experts. `shared`: the shared expert, if any. `biases`: whether router and
    experts have biases. `weighs_inputs`: with one expert per token, the share multiplies the
    expert's input instead of its result (Llama 4). `count_field` and `width_field`: the fields of
    configs with the number of experts and their width. `by_number`: several devices divide the
    experts by number, not by width; `held`: how many a device has, None for all. `latent`: the
    space in which the experts compute; None for that of x.
    """

    hidden: int
    width: int
    experts: int
    choices: int
    router: str = "gate"
    routing: Routing = CHOSEN
    tensors: ExpertTensors = EACH
    shared: SharedExpert | None = None
    biases: bool = False
    weighs_inputs: bool = False
    activation: Activation = silu
    count_field: str = "num_local_experts"
    width_field: str = "intermediate_size"
    by_number: bool = False
    held: int | None = None
    latent: LatentSpace | None = None

    def __post_init__(self) -> None:
        """Raise CheckpointError where more experts are chosen than exist, or groups do not fit."""
        if self.choices > self.experts:
            raise CheckpointError(
                f"config.json: wanted at most the {self.experts} experts for num_experts_per_tok, "
                f"found {self.choices}"
            )
        if self.experts % self.routing.groups or self.routing.kept > self.routing.groups:
            raise CheckpointError(
                f"config.json: wanted groups of experts that divide {self.experts}, and at most as "
                f"many chosen, found n_group {self.routing.groups}, topk_group {self.routing.kept}"
            )

    def parameters(self, name: str, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`."""
        hidden, width = ("hidden_size", self.hidden), (self.width_field, self.width)
        count = (self.count_field, self.experts)
        yield matrix(f"{name}.{self.router}.weight", count, hidden, quantizable=False)
        if self.biases:
            yield vector(f"{name}.{self.router}.bias", count)
        if self.routing.correction is not None:
            key = f"{name}.{self.routing.correction}"
            dims = (("one", 1), count) if self.routing.correction_is_row else (count,)
            yield Parameter(
                key=key, shape=(count[1],), rows=(CheckpointRows(tensor=key, dims=dims),)
            )
        if self.routing.factors is not None:
            yield vector(f"{name}.{self.routing.factors}", count)
        tensors, where, inner = self.tensors, f"{name}.experts", hidden
        if self.latent is not None:
            inner = (self.latent.field, self.latent.size)
            yield from self.latent.parameters(name, hidden)
        for parts, rows, columns in ((("gate", "up"), width, inner), (("down",), inner, width)):
            key = f"{where}.{'_'.join(parts)}_proj"
            shape = (self.experts, len(parts) * rows[1])
            found, layout = tensors.rows(where, parts, (count, rows, columns), format_of)
            yield Parameter(
                key=key,
                shape=(*shape, columns[1]),
                rows=found,
                matrix=True,
                quantizable=True,
                experts=True,
                layout=layout,
                split=self._split("rows" if len(parts) > 1 else "columns"),
                sections=_sections(parts, rows, layout),
            )
            if self.biases:
                found, layout = tensors.rows(where, parts, (count, rows), format_of, bias=True)
                yield Parameter(
                    key=f"{key}_bias",
                    shape=shape,
                    rows=found,
                    experts=True,
                    layout=layout,
                    split=self._split("rows" if len(parts) > 1 else "first"),
                    sections=_sections(parts, rows, layout),
                )
        if self.shared is not None:
            yield from self.shared.mlp.parameters(f"{name}.{self.shared.name}", format_of)
            if self.shared.gate is not None:
                gate = f"{name}.{self.shared.gate}.weight"
                yield matrix(gate, ("one", 1), hidden, quantizable=False)

    def share(self, devices: int) -> Mixture:
        """Return each device's share: a part of the width of every expert.

        The devices then have equal work whatever the router chooses. With `by_number` it is some
        experts in full. Raises CheckpointError where the width, or the number, does not divide.
        """
        shared = self.shared
        if shared is not None:
            shared = replace(shared, mlp=shared.mlp.share(devices))
        if self.latent is not None:
            divided(devices, self.latent.field, self.latent.size)
        if self.by_number:
            held = divided(devices, self.count_field, self.experts)
            return replace(self, held=held, shared=shared)
        width = divided(devices, self.width_field, self.width)
        return replace(self, width=width, shared=shared)

    def build(self, scope: Scope, x: ir.Value, name: str) -> Steps:
        """x [T, H] -> [T, H]."""
        if self.latent is None:
            return (yield self.addend(scope, x, name))
        space, shape = self.latent, (self.latent.size, self.hidden)
        (inner,) = linears(scope, x, [f"{name}.{space.down}"], shape)
        # A sum over the devices before its norm.
        mixed = yield self._mixed(scope, inner, name, x)
        mixed = space.leave(scope, mixed, name, self.hidden)
        return (yield self._with_shared(scope, x, mixed, name))

    def addend(
        self, scope: Scope, x: ir.Value, name: str, routed: ir.Value | None = None
    ) -> ir.Value:
        """Build the addend [T, H] for x [T, H]. routed [T, H]: the router's input, by default x."""
        mixed = self._mixed(scope, x, name, x if routed is None else routed)
        return self._with_shared(scope, x, mixed, name)

    def _mixed(self, scope: Scope, x: ir.Value, name: str, routed: ir.Value) -> ir.Value:
        """Build the addend [T, K] of the experts for x [T, K], chosen for `routed` [T, H]."""
        shares, chosen = self._route(scope, routed, name)
        width = shape_of(x)[1]
        with ir.Location.name(f"{name}.experts"):
            if self.held is not None:
                shares, chosen = _own(shares, chosen, scope.device.first_of(self.held), self.held)
            own = x
            if self.weighs_inputs:
                share = collapse(shares, [[0, 1]])
                own = generic([(x, "m k"), (share, "m")], "m k", f32(), arith.mulf)
                shares = fill(sizes_of(shares), f32(), 1.0)
            into, back = (f"{name}.experts.{part}_proj" for part in ("gate_up", "down"))
            scope.weights.observe(own, [into], chosen)
            rows = scope.weights.rows(own, into)
            if scope.group_rows:
                groups, rows = experts.group_by_expert(chosen, self._count, rows, scope.group_rows)
            else:
                groups = experts.one_group_a_pair(chosen)
                rows = experts.repeat_rows(rows, groups)
            y = self._linear(scope, rows, groups, into, 2 * self.width, width)
            middle = gated(y, self.activation)
            scope.weights.observe(middle, [back], chosen)
            inner = scope.weights.rows(middle, back)
            out = self._linear(scope, inner, groups, back, width, self.width)
            return experts.combine(out, shares, groups)

    @property
    def _count(self) -> int:
        """The number of experts whose weights this device has."""
        return self.experts if self.held is None else self.held

    def _split(self, by_width: Split) -> Split:
        """How the weights of experts are divided among devices."""
        return "matrices" if self.by_number else by_width

    def _route(self, scope: Scope, x: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        """x [T, H] -> shares f32 and experts i32 [T, J]."""
        router = f"{name}.{self.router}"
        # The router's input is in floats in every mode: see activations.py.
        floats = scope.weights.prepare(x, f"{router}.weight")
        shape = (self.experts, self.hidden)
        bias = scope.weights.own(f"{router}.bias")
        if scope.on_gpu and self.routing == CHOSEN and floats.floats is not None:
            weight = scope.weights.load(f"{router}.weight", *shape)
            size = self.experts * self.hidden * element_of(weight).width // 8
            if size <= MOST_BYTES and is_row_norm(x):
                shift = None if bias is None else scope.weights.load(bias, self.experts)
                with ir.Location.name(router):
                    return route(floats.floats, weight, shift, self.choices, self._routed)
        logits = scope.weights.linear(floats, router, f"{router}.weight", shape, bias)
        with ir.Location.name(f"{name}.experts"):
            correction, factors = (
                None if key is None else scope.weights.load(f"{name}.{key}", self.experts)
                for key in (self.routing.correction, self.routing.factors)
            )
            return self.routing.build(logits, self.choices, correction, factors)

    def _routed(
        self, x: ir.Value, weight: ir.Value, bias: ir.Value | None = None
    ) -> tuple[ir.Value, ir.Value]:
        """Build the reference body of the operation `route`."""
        logits = linear(x, weight, None)
        logits.owner.attributes[PRODUCT] = ir.UnitAttr.get()
        return self.routing.build(add_bias(logits, bias), self.choices)

    def _with_shared(self, scope: Scope, x: ir.Value, mixed: ir.Value, name: str) -> ir.Value:
        """mixed + shared(x) [T, H], with the factor of the gate, if any; mixed without an expert
        that is shared."""
        if self.shared is None:
            return mixed
        y = self.shared.mlp.addend(scope, x, f"{name}.{self.shared.name}")
        if self.shared.gate is None:
            return add(mixed, y)
        (logits,) = linears(scope, x, [f"{name}.{self.shared.gate}"], (1, self.hidden))

        def weighted(total: ir.Value, value: ir.Value, logit: ir.Value) -> ir.Value:
            return arith.addf(total, arith.mulf(sigmoid(logit), value))

        logits = collapse(logits, [[0, 1]])
        return generic([(mixed, "m n"), (y, "m n"), (logits, "m")], "m n", f32(), weighted)

    def _linear(
        self, scope: Scope, x: BlockActivations, groups: Groups, name: str, outputs: int, depth: int
    ) -> ir.Value:
        weights, shape = scope.weights, (self._count, outputs)
        format = weights.format(name)
        if format is None:
            elements, scales = weights.load(name, *shape, depth), None
        else:
            elements, scales = weights.blocked(name, format, shape, depth)
        bias = weights.load(f"{name}_bias", *shape) if weights.has(f"{name}_bias") else None
        weight = ExpertWeight(elements, scales, weights.tensor_scales(name, *shape), bias)
        return experts.expert_linear(x, groups, weight, name)


def _own(
    shares: ir.Value, chosen: ir.Value, first: int | None, count: int
) -> tuple[ir.Value, ir.Value]:
    """Shares f32 and experts i32 [T, J] on a device that has `count` experts from `first` on.

    Experts of other devices become its first one with a share of zero: shapes stay the same.
    """
    if first is None:
        return shares, chosen
    place, here = rows_here(collapse(chosen, [[0, 1]]), first, count)
    zero = constant(0.0, f32())
    own = generic(
        [(collapse(shares, [[0, 1]]), "p"), (here, "p")],
        "p",
        f32(),
        lambda share, inside: arith.select(inside, share, zero),
    )
    own, place = (expand(each, [[0, 1]], shape_of(chosen)) for each in (own, place))
    return own, place


def _sections(parts: Sequence[str], rows: Dim, layout: str) -> tuple[int, ...]:
    """Return the sections of an expert's rows that are divided among devices separately.

    These are gate and up, or all rows together where gate and up rows alternate in the checkpoint.
    """
    return (rows[1],) * len(parts) if layout == "identity" else (len(parts) * rows[1],)
