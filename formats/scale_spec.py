"""Parse strings that say what is scaled and how: `e2m1:e8m0_t32` is mxfp4, `e4m3:float32` an fp8
tensor.

    spec    := data ":" scaling | data           or a name of FORMATS: "mxfp4", "nvfp4"
    scaling := numbers tile{0,2}                 segments are joined by "_"
    numbers := scale                             one scale for each scope
             | scale "_" zero                    and a zero point, for unsigned data
             | scale "_" tensor                  and a float of the whole tensor (two levels)
             | "multi_" tensor "_" scale         the same, where it could be read as a zero point
             | tensor "_" scale "_" zero         all three, with or without "multi_"
    tile    := "t" [size] ["s" subtile] ["n" N "m" M] ["d" axis]
    number  := float32 | float16 | bfloat16 | e8m0 | e4m3 | e5m2 | e4m3fnuz | .. | intK | uintK

Scope: without tiles, one scale covers the whole tensor. One tile lies along the last axis; two lie
along the last two axes, or each along its `d`. Size 0, or no size, is the whole axis: `float32_t0`
is one scale per channel. Along an axis without a tile, every index has its own scale.

A second number is a tensor scale if the first has 8 bits or fewer and the second is a float
(`e4m3_float32_t16_t16`), else a zero point (`bfloat16_bfloat16_t0_t32`, `e4m3_int8_t16`).

Data without a scaling is an unscaled float. "_" may replace ":", as in TensorCast's names
(`e2m1_e8m0_t32`).

These are TensorCast's strings, with the meaning of its documentation: docs/scale.md and
docs/number.md of github.com/ROCm/tensorcast, branch triton. `d` is from its branch main. Subtiles,
N:M sparsity and codebooks are parsed so that errors can name them. Some numbers have other names
here: "e2m1fnuz", "e2m3fnuz", "e3m2fnuz" are e2m1, e2m3, e3m2; "e4m3fn" is e4m3; and "e4m3b8fnuz",
"e5m2b16fnuz" are e4m3fnuz and e5m2fnuz, the types of that name in torch and LLVM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mxc.errors import FormatError
from mxc.formats.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FORMATS,
    BlockFormat,
    ElementFormat,
)


class NumberKind(Enum):
    """The kind of a number."""

    FLOAT = "float"
    EXPONENT = "exponent"
    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"


@dataclass(frozen=True)
class NumberType:
    """A number type of `bits`. `element`: codes of floats of 8 bits or fewer, and of exponents."""

    name: str
    kind: NumberKind
    bits: int
    element: ElementFormat | None = None

    def __str__(self) -> str:
        """The name."""
        return self.name


_SMALL = (E2M1, E2M3, E3M2, E4M3, E5M2, E4M3FNUZ, E5M2FNUZ)

#: Numbers with their own names; integers are parsed by a rule.
NUMBERS: Mapping[str, NumberType] = {
    number.name: number
    for number in (
        NumberType("float32", NumberKind.FLOAT, 32),
        NumberType("float16", NumberKind.FLOAT, 16),
        NumberType("bfloat16", NumberKind.FLOAT, 16),
        NumberType("e8m0", NumberKind.EXPONENT, 8, E8M0),
        *(NumberType(each.name, NumberKind.FLOAT, each.bits, each) for each in _SMALL),
    )
}

_OTHER_NAMES = {
    "e2m1fnuz": "e2m1",
    "e2m1fn": "e2m1",
    "e2m3fnuz": "e2m3",
    "e2m3fn": "e2m3",
    "e3m2fnuz": "e3m2",
    "e3m2fn": "e3m2",
    "e4m3fn": "e4m3",
    "e4m3b8fnuz": "e4m3fnuz",
    "e5m2b16fnuz": "e5m2fnuz",
    "e8m0fnu": "e8m0",
    "e8m7": "bfloat16",
    "e5m10": "float16",
    "e8m23": "float32",
}
_INTEGER = re.compile(r"(u?)int(\d{1,2})")
_TILE = re.compile(r"t(\d{0,6})(?:s(\d{1,6}))?(?:n(\d{1,3})m(\d{1,3}))?(?:d(-?\d{1,2}))?")
_CODEBOOK = re.compile(r"(i?cb|l)\d\d.*")
#: Longest string that is parsed.
_LONGEST = 200


@dataclass(frozen=True)
class ScaleTile:
    """`size` elements along `axis` that share a scale, 0 for all. `axis` may be negative."""

    size: int
    axis: int
    subtile: int | None = None
    sparsity: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scaling:
    """Which elements share a scale, and which types the scales have.

    `tiles` are by axis; no tile is the whole tensor. `zero`: the type of a zero point beside each
    scale; a float is added to the scaled value, an integer subtracted from the code. `tensor`: the
    type of a second factor, one for the whole tensor. Raises FormatError where the parts are
    incompatible.
    """

    scale: NumberType
    tiles: tuple[ScaleTile, ...] = ()
    zero: NumberType | None = None
    tensor: NumberType | None = None

    def __post_init__(self) -> None:
        """Check that the parts are compatible."""
        place = f"scaling {str(self)!r}"
        if self.scale.kind not in (NumberKind.FLOAT, NumberKind.EXPONENT):
            raise FormatError(f"{place}: a scale is a float or e8m0, found {self.scale}")
        if self.zero is not None:
            if self.scale.kind is not NumberKind.FLOAT:
                raise FormatError(f"{place}: a zero point wants a float scale, found {self.scale}")
            if self.zero.kind not in (NumberKind.FLOAT, NumberKind.SIGNED):
                raise FormatError(f"{place}: a zero point is a float or intK, found {self.zero}")
        if self.tensor is not None and (self.tensor.kind, self.tensor.bits) != (
            NumberKind.FLOAT,
            32,
        ):
            raise FormatError(f"{place}: a tensor scale is a float32, found {self.tensor}")
        if self.tensor is not None and not self.tiles:
            raise FormatError(f"{place}: a tensor scale is beside the scales of tiles; add a tile")
        if self.zero is not None and self.tensor is None and _is_two_level(self.scale, self.zero):
            raise FormatError(
                f"{place}: a float zero point wants a scale of 16 bits or more where there is no "
                f"tensor scale, found {self.scale}"
            )
        if len(self.tiles) > 2:
            raise FormatError(f"{place}: at most two axes have tiles, found {len(self.tiles)}")
        if len({tile.axis for tile in self.tiles}) < len(self.tiles):
            raise FormatError(f"{place}: two tiles are for one axis; give them `d` of their own")
        if len(self.tiles) == 2 and not any(tile.size for tile in self.tiles):
            raise FormatError(f"{place}: of two tiles one has a size; for both axes give no tile")

    def __str__(self) -> str:
        """The canonical string that parses to this scaling: one string for each meaning."""
        numbers = [self.scale]
        if self.tensor is not None and self.zero is not None:
            numbers = [self.tensor, self.scale, self.zero]
        elif self.zero is not None:
            numbers = [self.scale, self.zero]
        elif self.tensor is not None:
            numbers = [self.scale, self.tensor]
        words = [str(number) for number in numbers]
        if numbers[1:] == [self.tensor] and not _is_two_level(*numbers):
            words = ["multi", *reversed(words)]
        usual = range(-len(self.tiles), 0)
        return "_".join(
            (
                *words,
                *(_tile_text(tile, axis) for tile, axis in zip(self.tiles, usual, strict=True)),
            )
        )

    def require_compiled(self) -> None:
        """Raise FormatError for subtiles and sparsity, which are parsed but not computed."""
        for tile in self.tiles:
            if tile.subtile is not None:
                raise FormatError(
                    f"scaling {str(self)!r}: subtiles (s{tile.subtile}), which choose among "
                    "codebooks, are not computed; leave the subtile out"
                )
            if tile.sparsity is not None:
                n, m = tile.sparsity
                raise FormatError(
                    f"scaling {str(self)!r}: {n}:{m} sparsity is not computed; leave n{n}m{m} out"
                )


@dataclass(frozen=True)
class ScaleSpec:
    """Data of one number type with its scaling, None if unscaled. Raises FormatError as Scaling."""

    data: NumberType
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        """Check that data and scaling are compatible."""
        if self.scaling is None:
            if self.data.kind is not NumberKind.FLOAT:
                raise FormatError(f"{self.data} data wants a scaling: {self.data}:float32, or so")
            return
        if self.data.kind is NumberKind.EXPONENT:
            raise FormatError(f"{self}: data is a float or an integer, found {self.data}")
        if self.data.bits > 16:
            raise FormatError(f"{self}: {self.data} is not scaled; give data of 16 bits at most")
        if (self.data.kind is NumberKind.UNSIGNED) != (self.scaling.zero is not None):
            wanted = "a" if self.data.kind is NumberKind.UNSIGNED else "no"
            raise FormatError(
                f"{self}: {self.data} data wants {wanted} zero point, as uint4:float16_int8_t32 or "
                "int4:float16_t32 have it"
            )

    def __str__(self) -> str:
        """The canonical string."""
        return str(self.data) if self.scaling is None else f"{self.data}:{self.scaling}"


def parse(text: str) -> ScaleSpec:
    """Parse `data:scaling`, data alone, or a name of FORMATS.

    Raises FormatError for an unknown number or tile, and for incompatible parts.
    """
    text = text.strip().lower()
    if text in FORMATS:
        return of_format(FORMATS[text])
    data, colon, scaling = text.partition(":" if ":" in text else "_")
    return ScaleSpec(parse_number(data), parse_scaling(scaling) if colon else None)


def of_format(format: BlockFormat) -> ScaleSpec:
    """The spec of a block format; "e2m1:e8m0_t32" for mxfp4."""
    data = format.element.name
    tensor = "_float32" if format.tensor_scale else ""
    return parse(f"{data}:{format.scale.name}{tensor}_t{format.block}")


def parse_scaling(text: str) -> Scaling:
    """Parse a scaling such as "e8m0_t32". Raises FormatError."""
    text = text.strip().lower()
    if len(text) > _LONGEST:
        raise FormatError(f"a scaling has at most {_LONGEST} characters, found {len(text)}")
    words = text.split("_")
    multi = words[0] == "multi"
    words = words[multi:]
    count = next((n for n, word in enumerate(words) if _TILE.fullmatch(word)), len(words))
    numbers = [parse_number(word, f" in {text!r}") for word in words[:count]]
    found = [_TILE.fullmatch(word) for word in words[count:]]
    if not all(found):
        wrong = next(w for w, match in zip(words[count:], found, strict=True) if match is None)
        raise FormatError(
            f"scaling {text!r}: after the first tile there are tiles, found {wrong!r}"
        )
    tiles = tuple(
        _tile(match, axis, text)
        for match, axis in zip(found, range(-len(found), 0), strict=True)
        if match is not None
    )
    if multi and len(numbers) == 1:
        raise FormatError(f"scaling {text!r}: multi_ wants a tensor scale and a scale")
    if len(numbers) == 1:
        return Scaling(numbers[0], tiles)
    if len(numbers) == 2:
        first, second = numbers
        if multi:
            return Scaling(second, tiles, tensor=first)
        if _is_two_level(first, second):
            return Scaling(first, tiles, tensor=second)
        return Scaling(first, tiles, zero=second)
    if len(numbers) == 3:
        return Scaling(numbers[1], tiles, zero=numbers[2], tensor=numbers[0])
    raise FormatError(f"scaling {text!r}: wanted one to three numbers, found {len(numbers)}")


def parse_number(text: str, place: str = "") -> NumberType:
    """Number type called `text`. Raises FormatError for an unknown name, listing the known ones."""
    name = text.strip().removeprefix("torch.").removeprefix("float8_")
    name = _OTHER_NAMES.get(name, name)
    if name in NUMBERS:
        return NUMBERS[name]
    match = _INTEGER.fullmatch(name)
    if match is not None and 2 <= int(match[2]) <= 16 and match[2][0] != "0":
        kind = NumberKind.UNSIGNED if match[1] else NumberKind.SIGNED
        return NumberType(name, kind, int(match[2]))
    if _CODEBOOK.fullmatch(name):
        raise FormatError(f"codebooks ({text}{place}) are not computed; choose a number")
    raise FormatError(
        f"unknown number {text!r}{place}; mxc knows {', '.join(NUMBERS)}, and int2 to int16 and "
        "uint2 to uint16"
    )


def _is_two_level(scale: NumberType, second: NumberType) -> bool:
    """Whether the number after a scale is a tensor scale rather than a zero point."""
    return scale.bits <= 8 and second.kind is NumberKind.FLOAT


def _tile(match: re.Match[str], axis: int, text: str) -> ScaleTile:
    size, subtile, n, m, other = match.groups()
    tile = ScaleTile(
        size=int(size or 0),
        axis=axis if other is None else int(other),
        subtile=None if subtile is None else int(subtile),
        sparsity=None if n is None else (int(n), int(m)),
    )
    if tile.subtile is not None and (tile.subtile < 1 or tile.size % tile.subtile or not tile.size):
        raise FormatError(f"scaling {text!r}: a subtile divides its tile, found {match[0]!r}")
    if tile.sparsity is not None and not 0 < tile.sparsity[0] < tile.sparsity[1]:
        raise FormatError(f"scaling {text!r}: of M elements N are kept, 0 < N < M; {match[0]!r}")
    return tile


def _tile_text(tile: ScaleTile, usual: int) -> str:
    subtile = "" if tile.subtile is None else f"s{tile.subtile}"
    sparsity = "" if tile.sparsity is None else "n{}m{}".format(*tile.sparsity)
    return f"t{tile.size}{subtile}{sparsity}" + ("" if tile.axis == usual else f"d{tile.axis}")
