"""The scaled contraction, described once for all machines.

    Y[y, n] = finish(sum over k of A[r, k] SA[r, k / step] * B[e, n, k] SB[e, n, k / block])

Groups g of m rows each; e is the expert of a group. Four ways for the rows:

    all      one group, one weight
    own      `rows` rows a group, by expert g
    chosen   `rows` rows a group, by expert IDS[g]
    sorted   group g are the rows ROUTES[g] to ROUTES[g + 1]; after those numbers ROUTES has the
             expert of each group, then the rows of the result that they are; A has rows in this
             order where they are `copied`

A gated result has columns n of two halves h of the weights. On tiles, activations in f32 are three
planes p of bf16, whose sum they are. Integers are counted in units, which SA brings in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mxc.kernels.decode import BF16, F32, I32, STEP
from mxc.kernels.language import Array, Derived, Do, Element, Kernel

Choice: TypeAlias = Literal["all", "own", "chosen", "sorted"]

#: bf16 that are an f32 together: 8 significant bits each.
PLANES = 3


@dataclass(frozen=True)
class Contraction:
    """Sizes and types of a contraction. `columns`: of the result; `rows`, `groups`: None where they
    come with the call; `block`: elements of a scale; `halves`: 2 for a gate; `together`: columns of
    the result that are finished at once; `step`: elements of a scale of activations, where they are
    `scaled`; `share`: consecutive rows of the result with the same activations."""

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
        """The definition: no loop, everything by coordinates."""
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
        # Of one expert there is one group, which its weights are still chosen by.
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
