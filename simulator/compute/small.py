"""Table of the conversions to and from fp4, fp6, bf6, fp8 and bf8, with their operands.

Source: AMD CDNA4 instruction set architecture, section 7.3 and the sections on VOP1 and VOP3.
"""

from __future__ import annotations

from dataclasses import dataclass

Registers = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SmallFloatConversion:
    """A conversion from `wide` to `small` if it narrows, else back; `count` elements per lane.

    scaled: the last operand is a scale. stochastic: the operand after the source is a seed.
    interleaved: two sources of 16 elements each, which alternate in the result.
    """

    small: str
    wide: str
    narrows: bool
    count: int
    scaled: bool = True
    stochastic: bool = False
    interleaved: bool = False

    @property
    def separate(self) -> bool:
        """Whether the two elements are separate operands."""
        return self.narrows and self.count == 2 and self.wide == "f32" and not self.stochastic

    @property
    def registers(self) -> Registers:
        """Numbers of registers of the result and of each operand."""
        wide = self.count if self.wide == "f32" else max(1, self.count // 2)
        small = 6 if self.count == 32 else 1
        rest = (1,) * (self.stochastic + self.scaled)
        if not self.narrows:
            return (wide,), (small, *rest)
        if self.interleaved:
            return (small,), (16, 16, *rest)
        return (small,), ((1, 1) if self.separate else (wide,)) + rest


def _table() -> dict[str, SmallFloatConversion]:
    table: dict[str, SmallFloatConversion] = {}
    for wide in ("f32", "f16", "bf16"):
        for small in ("fp4", "fp8", "bf8"):
            table[f"v_cvt_scalef32_pk_{wide}_{small}"] = SmallFloatConversion(small, wide, False, 2)
            table[f"v_cvt_scalef32_pk_{small}_{wide}"] = SmallFloatConversion(small, wide, True, 2)
        table[f"v_cvt_scalef32_sr_pk_fp4_{wide}"] = SmallFloatConversion(
            "fp4", wide, True, 2, stochastic=True
        )
        for small in ("fp8", "bf8"):
            table[f"v_cvt_scalef32_sr_{small}_{wide}"] = SmallFloatConversion(
                small, wide, True, 1, stochastic=True
            )
            if wide != "bf16":
                table[f"v_cvt_scalef32_{wide}_{small}"] = SmallFloatConversion(
                    small, wide, False, 1
                )
        for small in ("fp6", "bf6"):
            table[f"v_cvt_scalef32_pk32_{wide}_{small}"] = SmallFloatConversion(
                small, wide, False, 32
            )
            table[f"v_cvt_scalef32_sr_pk32_{small}_{wide}"] = SmallFloatConversion(
                small, wide, True, 32, stochastic=True
            )
            name = "2xpk16" if wide == "f32" else "pk32"
            table[f"v_cvt_scalef32_{name}_{small}_{wide}"] = SmallFloatConversion(
                small, wide, True, 32, interleaved=wide == "f32"
            )
    for small in ("fp8", "bf8"):
        table[f"v_cvt_pk_f32_{small}"] = SmallFloatConversion(small, "f32", False, 2, scaled=False)
        table[f"v_cvt_pk_{small}_f32"] = SmallFloatConversion(small, "f32", True, 2, scaled=False)
    for small in ("fp8", "bf8", "f16", "bf16"):
        table[f"v_cvt_sr_{small}_f32"] = SmallFloatConversion(
            small, "f32", True, 1, scaled=False, stochastic=True
        )
    return table


SMALL: dict[str, SmallFloatConversion] = _table()
#: v_cvt_pk_f32_fp8 and v_cvt_pk_f32_bf8 of gfx942.
FNUZ = {
    f"v_cvt_pk_f32_{small}": SmallFloatConversion(small, "f32", False, 2, scaled=False)
    for small in ("fp8z", "bf8z")
}
