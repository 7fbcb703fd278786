"""A dense MLP beside a mixture of experts, with norms of their own before and after (Gemma 4).

    norm_1(mlp(norm(x))) + norm_2(experts(norm_of_experts(x)))

The router's input is x, divided by its root mean square, times a weight [H] and H^-1/2.

Source: transformers' models/gemma4 (5.23), Gemma4TextDecoderLayer and Gemma4TextRouter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.devices import Steps
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import FormatOf, Parameter, vector
from mxc.compiler.models.blocks.primitives import add, divide_by_rms, f32
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import constant, generic, to_f32

_BEFORE = ("pre_feedforward_layernorm", "pre_feedforward_layernorm_2")
_BEHIND = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
_SCALE = "router.scale"


@dataclass(frozen=True, kw_only=True)
class DenseAndExperts:
    """The MLP and the mixture of a layer. Its input x is not normalized; `norm`: the model's norm.

    Names of the MLP's parameters begin with its own name; names of experts, router and norms begin
    with the layer's name.
    """

    mlp: Mlp
    experts: Mixture
    norm: Norm

    def parameters(self, name: str, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield the parameters; `name`: the name of the MLP in its layer."""
        layer, hidden = name.rpartition(".")[0], ("hidden_size", self.mlp.hidden)
        for norm in (*_BEFORE, *_BEHIND):
            yield from self.norm.parameters(f"{layer}.{norm}", hidden)
        yield from self.mlp.parameters(name, format_of)
        yield vector(f"{layer}.{_SCALE}", hidden)
        yield from self.experts.parameters(layer, format_of)

    def share(self, devices: int) -> DenseAndExperts:
        """Return each device's share: a part of both widths.

        Raises CheckpointError where they do not divide.
        """
        return replace(self, mlp=self.mlp.share(devices), experts=self.experts.share(devices))

    def build(self, scope: Scope, x: ir.Value, name: str) -> Steps:
        """x [T, H] -> [T, H]."""
        layer = name.rpartition(".")[0]
        before = [scope.norm(x, f"{layer}.{norm}") for norm in _BEFORE]
        with ir.Location.name(f"{layer}.{_SCALE}"):
            weight = scope.weights.load(f"{layer}.{_SCALE}", self.mlp.hidden)
            root = self.mlp.hidden**-0.5
            routed = generic(
                [(divide_by_rms(x, scope.normalization.epsilon), "m k"), (weight, "k")],
                "m k",
                f32(),
                lambda a, w: arith.mulf(arith.mulf(a, to_f32(w)), constant(root, f32())),
            )
        # Each is a sum over the devices before its norm.
        parts = (
            (yield self.mlp.addend(scope, before[0], name)),
            (yield self.experts.addend(scope, before[1], layer, routed)),
        )
        pairs = zip(parts, _BEHIND, strict=True)
        return add(*(scope.norm(part, f"{layer}.{norm}") for part, norm in pairs))
