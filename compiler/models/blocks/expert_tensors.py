"""Storage forms of a layer's experts in checkpoints, distinguished by tensor names.

    experts.0.gate_proj.weight [I, H], experts.0.up_proj.weight [I, H]    separate
    experts.0.gate_up_proj.weight [2 I, H]                                gate and up fused
    experts.gate_up_proj [E, 2 I, H]                                      all experts stacked

Biases are named likewise: experts.0.gate_proj.bias, .., experts.gate_up_proj_bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mxc.compiler.models.blocks.parameters import CheckpointRows, Dim, FormatOf

#: Names of the projections of an expert, and Mixtral's names.
PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True, kw_only=True)
class ExpertTensors:
    """The storage forms of an architecture's experts.

    `projections`: the names of an expert's projections, in order of preference. `stacked`: the
    architecture's own checkpoints have one tensor of all experts. `interleaved`: rows of gate and
    up alternate in fused tensors, instead of all gate rows before all up rows.
    """

    projections: tuple[dict[str, str], ...] = (PROJECTIONS,)
    stacked: bool = False
    interleaved: bool = False

    def rows(
        self,
        name: str,
        parts: Sequence[str],
        dims: tuple[Dim, Dim, *tuple[Dim, ...]],
        format_of: FormatOf,
        *,
        bias: bool = False,
    ) -> tuple[tuple[CheckpointRows, ...], str]:
        """Return the rows of `parts` ("gate" and "up", or "down") or of their biases, and a layout.

        name: the name of the experts. dims: experts, rows, and for weights columns. The form is the
        first whose tensor exists, or the architecture's own if there is none.
        """
        count, rows, *columns = dims
        whole = (f"{len(parts)} * {rows[0]}", len(parts) * rows[1]) if len(parts) > 1 else rows
        ending = "bias" if bias else "weight"
        fused = f"{'_'.join(parts)}_proj"
        layout = "gate-then-up" if self.interleaved and len(parts) > 1 else "identity"

        def stacked() -> Iterator[CheckpointRows]:
            tensor = f"{name}.{fused}{'_bias' if bias else ''}"
            yield CheckpointRows(tensor=tensor, dims=(count, whole, *columns))

        def each(projections: Sequence[str], size: Dim) -> Iterator[CheckpointRows]:
            for expert in range(count[1]):
                for projection in projections:
                    tensor = f"{name}.{expert}.{projection}.{ending}"
                    yield CheckpointRows(tensor=tensor, dims=(size, *columns))

        ways = [
            (tuple(each([names[part] for part in parts], rows)), "identity")
            for names in self.projections
        ]
        if len(parts) > 1:
            ways.append((tuple(each([fused], whole)), layout))
        ways.insert(0 if self.stacked else len(ways), (tuple(stacked()), layout))
        for found in ways:
            if format_of(found[0][0].tensor) is not None:
                return found
        return ways[0]


#: A tensor for each projection of each expert.
EACH = ExpertTensors()
