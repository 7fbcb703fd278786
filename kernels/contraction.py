"""The scaled contraction, described once for all machines.

    Y[y, n] = finish(sum over k of A[r, k] SA[r, k / step] * B[e, n, k] SB[e, n, k / block])

A are activations, B weights, SA and SB their scales; finish is the epilogue. Rows come in groups g
of m rows each. r is the row of A, y the row of Y, and e the expert whose weights the group uses.
There are four choices of e:

    all      one group, one weight, no expert
    own      `rows` rows per group; group g uses expert g
    chosen   `rows` rows per group; group g uses expert IDS[g]
    sorted   rows are sorted by expert; group g has the sorted rows from ROUTES[g] to before
             ROUTES[g + 1]; after these, ROUTES holds the expert of each group, then the row of the
             result for each sorted row; A is in sorted order if it was `copied`

For a gate, the weights have two halves h, and column n of the result is computed from column n of
both. On tiles, f32 activations are the sum of three planes p of bf16. Integer operands count units,
and SA includes the unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mxc.kernels.decode import BF16, F32, I32, STEP
from mxc.kernels.language import Array, Derived, Do, Element, Kernel

Choice: TypeAlias = Literal["all", "own", "chosen", "sorted"]

#: Number of bf16 that sum to an f32: each has 8 significant bits.
PLANES = 3


@dataclass(frozen=True)
class ContractionShape:
    """Sizes and types of a contraction.

    `columns`: columns of the result. `depth`: elements along K. `rows`, `groups`: rows per group
    and number of groups; None if they are known only at the call. `experts`: 0 if there is a single
    weight. `block`: elements per scale of weights. `halves`: 2 for a gate. `planes`: bf16 planes of
    an activation. `together`: columns of the result that are finished at once. `scaled`: whether
    activations have scales. `step`: elements along K that are processed at once; where activations
    are scaled, elements per scale. `share`: number of consecutive rows of the result with the same
    activations. `copied`: whether activations are copied in sorted order.
    """

    columns: int
    depth: int
    weights: Element
    scales: Element | None = None
    block: int = 32
    rows: int | None = None
    groups: int | None = 1
    experts: int = 0
    choice: Choice = "all"
    halves: int = 1
    planes: int = 1
    together: int = 16
    result: Element = F32
    activations: Element = BF16
    scaled: bool = False
    step: int = STEP
    share: int = 1
    copied: bool = True

    @property
    def kernel(self) -> Kernel:
        """The definition of the result: no loops, every array addressed by coordinates."""
        expert = ("e",) if self.experts else ()
        half = ("h",) if self.halves > 1 else ()
        plane = ("p",) if self.planes > 1 else ()
        arrays = [Array("A", self.activations, ("r", "k", *plane), "global")]
        if self.scaled:
            arrays.append(Array("SA", F32, ("r", "k"), "global", grain={"k": self.step}))
        if self.choice == "chosen":
            arrays.append(Array("IDS", I32, ("g",), "global"))
        if self.choice == "sorted":
            arrays.append(Array("ROUTES", I32, ("g",), "global"))
        arrays.append(Array("B", self.weights, (*expert, *half, "n", "k"), "global"))
        if self.scales is not None:
            grain = {"k": self.block}
            arrays.append(
                Array("SB", self.scales, (*expert, *half, "n", "k"), "global", grain=grain)
            )
        # One expert means one group, and its weights still have the expert axis.
        group = ("g",) if self.groups != 1 or self.experts else ()
        arrays += [
            Array("T", F32, (*group, "m", *half, "n")),
            Array("Y", self.result, ("y", "n"), "global"),
        ]
        sides = ("A", "B", *(["SA"] * self.scaled), *(["SB"] if self.scales is not None else []))
        return Kernel(
            f"{self.weights.name}_{self.choice}",
            self._sizes,
            {array.name: array for array in arrays},
            (Do("zero", "T"), Do("dot", "T", sides), Do("map", "Y", ("T",))),
            self._derived,
            {"m": ("ROUTES", "g")} if self.choice == "sorted" and self.rows is None else {},
        )

    @property
    def _sizes(self) -> dict[str, int | None]:
        sizes: dict[str, int | None] = {"g": self.groups, "m": self.rows}
        if self.halves > 1:
            sizes["h"] = self.halves
        sizes |= {"n": self.columns, "k": self.depth}
        return sizes | ({"p": self.planes} if self.planes > 1 else {})

    @property
    def _derived(self) -> dict[str, Derived]:
        """The coordinates r, y and e of the module docstring."""
        if self.choice == "sorted":
            rows = Derived("g", table="ROUTES", plus="m")
            order = replace(rows, through="ROUTES", behind=2 * self.experts + 1)
            read = rows if self.copied else replace(order, share=self.share)
            expert = Derived("g", through="ROUTES", behind=self.experts + 1)
            return {"r": read, "y": order, "e": expert}
        rows = Derived("g", times=self.rows, plus="m")
        found = {"r": replace(rows, share=self.share), "y": rows}
        if self.choice == "own":
            return found | {"e": Derived("g")}
        chosen = Derived("g", table="IDS", below=self.experts)
        return found | ({"e": chosen} if self.experts else {})
