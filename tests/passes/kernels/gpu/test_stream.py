"""Streams of scaled products, compiled from programs, on the simulator with its sanitizer.

Elements and scales are decoded by `mxc.formats.packing`, which has tests of its own; products are
those of numpy in float64. Scales are random, so that the scale of a wrong block is noticed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, flow, func
from numpy.typing import NDArray

import mxc
from mxc.artifact.code_objects.metadata import Resources
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.scaled import scaled_contraction
from mxc.errors import PassError
from mxc.formats.formats import FORMATS
from mxc.formats.packing import decode_elements, decode_scales
from mxc.runtime.simulated import SimulatedModel, load
from mxc.simulator.watch.sanitizer import Sanitizer

Array = NDArray[Any]
F4, E2M3, E3M2, E4M3, E5M2 = "mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2"
NVFP4 = "nvfp4"
#: Codes of NaN and infinity, as (mask, value): those whose bits under the mask have the value.
NOT_FINITE = {E4M3: (0x7F, 0x7F), E5M2: (0x7C, 0x7C)}
#: f32 activations that are rounded to bf16 before they are multiplied.
ROUNDED = "f32 as bf16"
FLOATS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, ROUNDED: np.float32}


def operand(
    rng: np.random.Generator, shape: Sequence[int], format: str, scales: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Draw an operand [.., K], with scales between two bytes: elements, scales, float64 values."""
    *lead, k = shape
    codes = rng.integers(0, 256, (*lead, FORMATS[format].packed_bytes(k)), dtype=np.uint8)
    if format in NOT_FINITE:
        mask, special = NOT_FINITE[format]
        codes[codes & mask == special] = 0
    block = FORMATS[format].block
    factors = rng.integers(*scales, (*lead, k // block), dtype=np.uint8, endpoint=True)
    values = decode_elements(codes, format).astype(np.float64)
    return codes, factors, values * np.repeat(decode_scales(factors, format), block, axis=-1)


def bytes_type(*shape: int) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), ir.IntegerType.get_signless(8))


def unpacked(value: ir.Value, format: str) -> ir.Value:
    """Bitcast i8 [.., K / block, bytes] to the elements of a format."""
    *lead, _ = ir.RankedTensorType(value.type).shape
    element = ir.Type.parse(FORMATS[format].element.mlir)
    kind = ir.RankedTensorType.get([*lead, FORMATS[format].block], element)
    return flow.TensorBitCastOp(kind, value, [], []).result


def scales_of(value: ir.Value, format: str = F4) -> ir.Value:
    shape = ir.RankedTensorType(value.type).shape
    kind = ir.RankedTensorType.get(shape, ir.Type.parse(FORMATS[format].scale.mlir))
    return flow.TensorBitCastOp(kind, value, [], []).result


def program(**cases: tuple[int, int, int, str, str]) -> str:
    """Return a program with a function for each case: bytes or floats -> f32 [m, n]."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for name, case in cases.items():
                product(name, *case)
        return str(module)


def product(name: str, m: int, n: int, k: int, lhs: str, rhs: str) -> None:
    """Build the function of one case."""
    block = FORMATS[rhs].block
    blocks = k // block
    kinds = [bytes_type(n, blocks, FORMATS[rhs].block_bytes), bytes_type(n, blocks)]
    if lhs in FLOATS:
        memory = ir.Type.parse("f32" if lhs == ROUNDED else lhs)
        kinds.insert(0, ir.RankedTensorType.get([m, blocks, block], memory))
    else:
        kinds = [bytes_type(m, blocks, FORMATS[lhs].block_bytes), bytes_type(m, blocks), *kinds]

    @func.FuncOp.from_py_func(*kinds, name=name)
    def _(*given: ir.Value) -> ir.Value:
        *left, w, t = given
        weights = w if rhs == "mxint8" else unpacked(w, rhs)
        if lhs == ROUNDED:
            bf16 = ir.BF16Type.get()
            left = [generic([(left[0], "m o b")], "m o b", bf16, lambda x: arith.truncf(bf16, x))]
        if lhs in FLOATS:
            return scaled_contraction(left[0], weights, rhs_scale=scales_of(t, rhs))
        return scaled_contraction(
            unpacked(left[0], lhs), weights, lhs_scale=scales_of(left[1]), rhs_scale=scales_of(t)
        )


@dataclass
class Compiled:
    """A program on the simulator."""

    model: SimulatedModel
    watched: dict[str, Sanitizer]

    def __call__(self, name: str, *arguments: Array) -> tuple[Array, list[str]]:
        """Call a function; return its result and the names of the kernels that ran. Asserts that
        the sanitizer finds nothing."""
        self.watched.clear()
        (found,) = self.model.call(name, *arguments)
        assert not [finding for each in self.watched.values() for finding in each.findings]
        return found, list(self.watched)


def compiled(
    text: str,
    folder: Path,
    *,
    schedule: Path | None = None,
    target: str = "gfx950",
    listing: bool = False,
) -> Compiled:
    """Compile a program in a folder, and load it on the simulator."""
    (folder / "p.mlir").write_text(text)
    mxc.compile(
        folder / "p.mlir",
        target=target,
        output=folder / "p.mxc",
        schedule=schedule,
        force=True,
        listing=listing,
    )
    watched: dict[str, Sanitizer] = {}
    model = load(
        folder / "p.mxc", observe=lambda kernel: watched.setdefault(kernel.name, Sanitizer())
    )
    return Compiled(model, watched)


def run(text: str, folder: Path, *arguments: Array, **options: Any) -> tuple[Array, list[str]]:
    """Compile a program and call @main; return what `Compiled` does."""
    return compiled(text, folder, **options)("main", *arguments)


CASES = [
    # K of whole steps, K that ends within the four scales of a lane, and K of less than these; rows
    # and columns that do not fill tiles; one wave, and several along K.
    (16, 16, 512, F4, F4),
    (1, 48, 2880, E4M3, F4),
    (5, 52, 1056, E2M3, E5M2),
    (33, 100, 1024, E5M2, E4M3),
    (100, 96, 2880, F4, E3M2),
    (3, 12, 64, E3M2, E2M3),
    (130, 68, 160, E4M3, E4M3),
    (1, 64, 2880, "bf16", F4),
    (20, 36, 1056, "f32", F4),
    (4, 16, 544, "bf16", E4M3),
    (4, 16, 544, "f32", E5M2),
    (4, 16, 544, "bf16", E2M3),
    (4, 16, 544, "f32", E3M2),
    (4, 16, 544, "f16", E3M2),
    (4, 16, 544, "bf16", "mxint8"),
    (70, 40, 96, "bf16", F4),
    # Columns that are no multiple of four: a store past the end of a row would be in the next row.
    (7, 33, 96, F4, F4),
    (5, 22, 544, "bf16", E2M3),
    # Blocks of 16, with two scales for 32 elements; K of whole and cut steps, and less than a step.
    (4, 16, 1056, "bf16", NVFP4),
    (20, 36, 64, "f32", NVFP4),
]


#: Cases for gfx942, which decodes both sides to bf16: every format on either side.
DECODED = [
    (5, 52, 2880, F4, E2M3),
    (33, 100, 1024, E5M2, E4M3),
    (70, 36, 96, E3M2, E5M2),
    (3, 12, 64, E4M3, F4),
    (20, 33, 544, "f32", F4),
    (4, 16, 544, "f16", E3M2),
    (1, 16, 1056, "bf16", "mxint8"),
    (4, 16, 1056, "bf16", NVFP4),
    (40, 36, 1056, ROUNDED, E4M3),
]


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    """Compile all cases of each target as one program."""
    return {
        target: compiled(
            program(**{f"case{number}": case for number, case in enumerate(cases)}),
            tmp_path_factory.mktemp(target),
            target=target,
        )
        for target, cases in (("gfx950", CASES), ("gfx942", DECODED))
    }


@pytest.mark.parametrize(
    ("target", "number"),
    [
        *(("gfx950", number) for number in range(len(CASES))),
        *(("gfx942", number) for number in range(len(DECODED))),
    ],
)
def test_products(target: str, number: int, products: dict[str, Compiled]) -> None:
    m, n, k, lhs, rhs = {"gfx950": CASES, "gfx942": DECODED}[target][number]
    rng = np.random.default_rng(m + n + k)
    block = FORMATS[rhs].block
    # Scales of nvfp4 are E4M3: bit 7 is the sign, and 126 is the largest finite code.
    w, t, right = operand(rng, (n, k), rhs, (40, 120) if rhs == NVFP4 else (117, 137))
    given: list[Array] = [w.reshape(n, k // block, -1).view(np.int8), t.view(np.int8)]
    if lhs in FLOATS:
        x = rng.normal(size=(m, k // block, block)).astype(FLOATS[lhs])
        left = x.astype(ml_dtypes.bfloat16 if lhs == ROUNDED else x.dtype)
        left = left.reshape(m, k).astype(np.float64)
        given.insert(0, x)
    else:
        x, s, left = operand(rng, (m, k), lhs, (117, 137))
        given = [x.reshape(m, k // 32, -1).view(np.int8), s.view(np.int8), *given]
    found, kernels = products[target](f"case{number}", *given)
    wanted = left @ right.T
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert [name.startswith("mxc_") for name in kernels] == [True]


@pytest.mark.parametrize(
    ("target", "case", "most"),
    [
        ("gfx942", (16, 16, 16384, "f32", E4M3), 256),
        ("gfx950", (16, 16, 16384, "bf16", "mxint8"), 256),
        ("gfx942", (144, 1536, 7168, ROUNDED, E4M3), 512),
        ("gfx942", (1, 64, 16384, E4M3, E4M3), 256),
        ("gfx1250", (144, 2880, 4096, ROUNDED, E4M3), 512),
        ("gfx1151", (144, 2880, 4096, ROUNDED, E4M3), 256),
    ],
)
def test_registers_are_enough(
    target: str,
    case: tuple[int, int, int, str, str],
    most: int,
    resources: Callable[[str, str], dict[str, Resources]],
) -> None:
    """What is loaded, decoded or rounded at once is no more than a wave has registers for."""
    (found,) = resources(program(main=case), target).values()
    assert found.spills == found.scratch_bytes == 0
    assert found.vgpr < most


@pytest.mark.parametrize(
    ("format", "least"), [(F4, 0), (E2M3, 0), (E3M2, 0), (E4M3, 3), (E5M2, 10)]
)
def test_every_code_under_extreme_scales(format: str, least: int, tmp_path: Path) -> None:
    """Decoded by integers: exact from the least scale under which bf16 holds all codes.

    A code that is no number, and a scale that is none, are so in their column alone.
    """
    element = FORMATS[format].element
    special = [*element.inf_codes[:1], *element.nan_codes[-1:]]
    codes = np.tile(np.arange(1 << element.bits), -(-64 >> element.bits) or 1)
    codes[~np.isfinite(element.values[codes])] = 0
    columns, k = 16, codes.size
    own = np.tile(codes, (columns, 1))
    scales = np.linspace(least, 254 - element.emax, columns).astype(np.uint8)
    scales[7] = 0xFF
    for column, code in enumerate(special, start=3):
        own[column, 5] = code
    bits = (own[..., None] >> np.arange(element.bits) & 1).astype(np.uint8)
    w = np.packbits(bits.reshape(columns, -1), axis=-1, bitorder="little")
    # Row i of the activations is scaled such that its products with column i are not far from 1.
    signs = np.random.default_rng(1).choice([-2.0, -1.0, 1.0, 2.0], k)
    factors = 2.0 ** np.clip(127.0 - scales, -126, 125)
    x = (signs * factors[:, None]).astype(ml_dtypes.bfloat16)
    t = np.repeat(scales[:, None], k // 32, axis=1)
    given = [x.reshape(columns, -1, 32), w.reshape(columns, k // 32, -1).view(np.int8)]
    text = program(main=(columns, columns, k, "bf16", format))
    found, _ = run(text, tmp_path, *given, t.view(np.int8), target="gfx942")
    right = element.values[own].astype(np.float64) * decode_scales(scales, format)[:, None]
    with np.errstate(invalid="ignore"):
        wanted = (x.astype(np.float64) * right).sum(axis=1)
    np.testing.assert_allclose(found.diagonal(), wanted, rtol=1e-6)
    plain = [n for n in range(columns) if np.isfinite(wanted[n])]
    assert len(plain) == columns - 1 - len(special)
    assert np.isfinite(found[np.ix_(plain, plain)].diagonal()).all()


@pytest.mark.parametrize("own", [True, False])
def test_batches(own: bool, tmp_path: Path) -> None:
    """Each product of a batch has its own weights, or all have the same; the last rows are cut."""
    rng = np.random.default_rng(11)
    batch, m, n, k = 3, 5, 18, 160
    x, s, left = operand(rng, (batch, m, k), E4M3, (117, 137))
    w, t, right = operand(rng, (batch, n, k) if own else (n, k), F4, (117, 137))
    rows, lead = [batch, m, k // 32], [batch] if own else []
    text = BATCH.format(
        x=f"{batch}x{m}x5x32xf8E4M3FN",
        xs=f"{batch}x{m}x5xf8E8M0FNU",
        w="x".join(map(str, [*lead, n])) + "x5x32xf4E2M1FN",
        ws="x".join(map(str, [*lead, n])) + "x5xf8E8M0FNU",
        xb="x".join(map(str, [*rows, 32])) + "xi8",
        xsb="x".join(map(str, rows)) + "xi8",
        wb="x".join(map(str, [*lead, n])) + "x5x16xi8",
        wsb="x".join(map(str, [*lead, n])) + "x5xi8",
        y=f"{batch}x{m}x{n}xf32",
        e="e, " if own else "",
    )
    given = [x.reshape(*rows, 32), s, w.reshape(*w.shape[:-1], 5, 16), t]
    found, kernels = run(text, tmp_path, *(each.view(np.int8) for each in given))
    wanted = left @ np.swapaxes(right, -1, -2)
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert [name.startswith("mxc_") for name in kernels] == [True]


BATCH = """
func.func @main(%a: tensor<{xb}>, %b: tensor<{xsb}>, %c: tensor<{wb}>, %d: tensor<{wsb}>)
    -> tensor<{y}> {{
  %x = flow.tensor.bitcast %a : tensor<{xb}> -> tensor<{x}>
  %xs = flow.tensor.bitcast %b : tensor<{xsb}> -> tensor<{xs}>
  %w = flow.tensor.bitcast %c : tensor<{wb}> -> tensor<{w}>
  %ws = flow.tensor.bitcast %d : tensor<{wsb}> -> tensor<{ws}>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{y}>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<{y}>) -> tensor<{y}>
  %y = linalg.generic {{
      indexing_maps = [
        affine_map<(e, m, n, k, b) -> (e, m, k, b)>, affine_map<(e, m, n, k, b) -> ({e}n, k, b)>,
        affine_map<(e, m, n, k, b) -> (e, m, k)>, affine_map<(e, m, n, k, b) -> ({e}n, k)>,
        affine_map<(e, m, n, k, b) -> (e, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}}
      ins(%x, %w, %xs, %ws : tensor<{x}>, tensor<{w}>, tensor<{xs}>, tensor<{ws}>)
      outs(%acc : tensor<{y}>) {{
  ^bb0(%l: f8E4M3FN, %r: f4E2M1FN, %ls: f8E8M0FNU, %rs: f8E8M0FNU, %o: f32):
    %p = arith.scaling_extf %l, %ls : f8E4M3FN, f8E8M0FNU to f32
    %q = arith.scaling_extf %r, %rs : f4E2M1FN, f8E8M0FNU to f32
    %t = arith.mulf %p, %q : f32
    %u = arith.addf %o, %t : f32
    linalg.yield %u : f32
  }} -> tensor<{y}>
  return %y : tensor<{y}>
}}
"""


def test_a_nan_scale_is_nan_in_its_row_alone(tmp_path: Path) -> None:
    """The next row's first scales lie past the end of a row: they are not its own."""
    rng = np.random.default_rng(3)
    m, n, k = 4, 16, 2880
    x, s, left = operand(rng, (m, k), E4M3, (120, 130))
    w, t, right = operand(rng, (n, k), F4, (120, 130))
    t[5, 0] = 0xFF
    given = [x.reshape(m, -1, 32), s, w.reshape(n, -1, 16), t]
    found, _ = run(
        program(main=(m, n, k, E4M3, F4)), tmp_path, *(each.view(np.int8) for each in given)
    )
    assert np.isnan(found[:, 5]).all()
    rest = np.delete(np.arange(n), 5)
    wanted = left @ right[rest].T
    assert np.abs(found[:, rest] - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("lhs", [E4M3, "bf16"])
def test_a_schedule_of_ones_own(lhs: str, tmp_path: Path) -> None:
    """Through shared memory instead, where the model would not; the same numbers."""
    rng = np.random.default_rng(7)
    m, n, k = 40, 72, 544
    x, s, left = operand(rng, (m, k), E4M3, (117, 137))
    w, t, right = operand(rng, (n, k), F4, (117, 137))
    given = [x.reshape(m, -1, 32), s, w.reshape(n, -1, 16), t]
    k_steps, waves = 2, [4, 1, 1]
    if lhs in FLOATS:
        floats = rng.normal(size=(m, k // 32, 32)).astype(FLOATS[lhs])
        given[:2], left = [floats], floats.reshape(m, k).astype(np.float64)
        k_steps, waves = 1, [2, 2, 1]
    ring = {"instruction": 32, "tiles": [1, 1], "waves": waves, "transport": "ring"}
    schedules = tmp_path / "schedules.json"
    schedules.write_text(
        json.dumps([{"m": m, "schedule": {**ring, "stages": 3, "k_steps": k_steps}}])
    )
    arguments = [each if each.itemsize > 1 else each.view(np.int8) for each in given]
    found, _ = run(
        program(main=(m, n, k, lhs, F4)), tmp_path, *arguments, schedule=schedules, listing=True
    )
    wanted = left @ right.T
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    (kernel,) = json.loads((tmp_path / "p.mxc" / "report.json").read_text())["kernels"]
    assert kernel["lds_bytes"] > 0
    schedules.write_text(json.dumps([{"m": m + 1, "schedule": ring}]))
    with pytest.raises(PassError, match="no contraction has m 41"):
        run(program(main=(m, n, k, lhs, F4)), tmp_path, *arguments, schedule=schedules)
