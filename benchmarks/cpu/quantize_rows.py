"""Compare quantization of floats to MX blocks with the memory limit: a copy of as many bytes.

    python benchmarks/cpu/quantize_rows.py [--threads 1,2] [--formats mxfp4,mxfp8e4m3]
        [--kinds f32,bf16] [--recipe even] [--mib 96] [--seconds 2] [--stock] [--json]

The kernel and the limit alternate, and the minimum time of each counts. Rates are in 1e9 bytes of
input per second. `--stock` adds the same program compiled by IREE without mxc's passes. The exit
status is 1 where a result differs from the reference.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir, tools
from iree.compiler.dialects import arith, flow, func, vector
from limits import numbers
from programs import Array, Loaded, compile_build, memref, shape
from repetitions import interleave
from stock import STOCK_FLAGS

from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of
from mxc.dialects.quantize import BLOCK, MX_FORMATS, quantize_mx
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize
from mxc.passes.kernels.executables import dispatch, executable, workgroup
from mxc.passes.kernels.reshapes import as_tensor
from mxc.passes.kernels.vectors import bitcast, i8, i32, index, load, loop, of, prefetch
from mxc.runtime.other_load import OtherLoad

KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
#: Kernel of the limit: blocks of a workgroup, and distance of its prefetches in blocks.
PIECE, AHEAD = 1024, 64
#: Number of first and of last blocks that are compared with the reference.
CHECKED = 1 << 14


@dataclass(frozen=True)
class Row:
    """One conversion: 1e9 bytes of input a second of the kernel, of the limit and of stock IREE.

    `kind`: type of the input. `exact`: whether the result is that of the reference.
    """

    kind: str
    format: str
    recipe: str
    threads: int
    rate: float
    limit: float
    stock: float | None
    exact: bool

    @property
    def of_limit(self) -> float:
        return self.rate / self.limit

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "of_limit": self.of_limit}


def measure(
    kind: str, format: str, recipe: str, threads: int, mib: float, seconds: float, stock: bool
) -> Row:
    """Measure one conversion of `mib` MiB of `kind` for about `seconds`.

    `stock`: whether IREE without mxc's passes is measured too.
    """
    width = np.dtype(KINDS[kind]).itemsize
    blocks = int(mib * (1 << 20)) // (BLOCK * width)
    x = np.random.default_rng(7).normal(size=(blocks, BLOCK)).astype(np.float32)
    x = x.astype(KINDS[kind])
    given = x.view(np.int16) if kind == "bf16" else x

    def build(_: object) -> None:
        _quantize(kind, format, recipe, blocks)
        _limit(kind, format, blocks)

    loaded = Loaded(compile_build(build).code, {}, threads)
    held = loaded.put(given)
    calls: dict[str, Callable[[], Any]] = {
        name: loaded.prepare(name, held) for name in ("quantize", "limit")
    }
    exact = _is_exact(loaded, calls["quantize"](), x, format, recipe)
    if stock:
        other = Loaded(_stock(kind, format, recipe, blocks), {}, threads)
        calls["stock"] = other.prepare("quantize", other.put(given))
    times = interleave(calls, seconds=seconds, settle=0)
    rates = {name: x.nbytes / time.least / 1e9 for name, time in times.items()}
    return Row(
        kind, format, recipe, threads, rates["quantize"], rates["limit"], rates.get("stock"), exact
    )


def _is_exact(loaded: Loaded, outputs: Any, x: Array, format: str, recipe: str) -> bool:
    """Whether the first and the last CHECKED blocks are those of the reference."""
    elements, scales = (loaded.read(outputs, number).view(np.uint8) for number in range(2))
    found = True
    for part in (slice(None, CHECKED), slice(-CHECKED, None)):
        wanted = quantize(x[part].astype(np.float32), format, recipe=ScaleRecipe(recipe))
        found &= np.array_equal(scales[part].reshape(-1), wanted.scales.reshape(-1))
        found &= np.array_equal(elements[part].reshape(wanted.elements.shape), wanted.elements)
    return found


def _quantize(kind: str, format: str, recipe: str, blocks: int) -> None:
    """Add @quantize: floats -> elements and scales as bytes. bf16 is given as i16."""
    given = ir.Type.parse({"bf16": "i16"}.get(kind, kind))

    def outside(value: ir.Value) -> ir.Value:
        return value if str(element_of(value)) == "i8" else pack(value)

    def body(x: ir.Value) -> tuple[ir.Value, ir.Value]:
        if kind == "bf16":
            x = flow.TensorBitCastOp(shape(blocks, BLOCK, of=ir.BF16Type.get()), x, [], []).result
        elements, scales = quantize_mx(x, format, recipe)
        return outside(elements), outside(scales)

    func.FuncOp.from_py_func(shape(blocks, BLOCK, of=given), name="quantize")(body)


def _limit(kind: str, format: str, blocks: int) -> None:
    """Add @limit, which reads and writes as many bytes as @quantize, in the same order."""
    width = np.dtype(KINDS[kind]).itemsize
    out = FORMATS[format].block_bytes
    words = BLOCK * width // 4
    kinds = [
        memref([blocks, words], i32()),
        memref([blocks, out], i8()),
        memref([blocks], i8()),
    ]

    def body(read: ir.Value, elements: ir.Value, scales: ir.Value) -> None:
        lanes = 16
        first = arith.muli(workgroup(0), index(PIECE))
        last = arith.minui(arith.addi(first, index(PIECE)), index(blocks))
        with loop(first, last, index(lanes)) as (group, _, _):
            for lane in range(lanes):
                block = arith.addi(group, index(lane))
                for start in range(0, words, lanes):
                    prefetch(read, [arith.addi(block, index(AHEAD)), index(start)])
                parts = [load(read, [block, index(at)], i32(), lanes) for at in range(0, words, 16)]
                total = parts[0]
                for part in parts[1:]:
                    total = arith.xori(total, part)
                raw = bitcast(total, i8(), 4 * lanes)
                cut = vector.shuffle(raw, raw, list(range(out)))
                vector.store(cut, elements, [block, index(0)])
            vector.store(arith.trunci(of(i8(), lanes), total), scales, [group])

    executable("limit_kernel", kinds, lambda _: (-(-blocks // PIECE), 1), body)

    def call(x: ir.Value) -> list[ir.Value]:
        made = dispatch("limit_kernel", [x], [as_tensor(each) for each in kinds[1:]])
        return list(made.results)

    given = ir.Type.parse({"bf16": "i16"}.get(kind, kind))
    func.FuncOp.from_py_func(shape(blocks, BLOCK, of=given), name="limit")(call)


def _stock(kind: str, format: str, recipe: str, blocks: int) -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            _quantize(kind, format, recipe, blocks)
        text = str(module)
    code: bytes = tools.compile_str(text, extra_args=list(STOCK_FLAGS))
    return code


def show(rows: list[Row]) -> None:
    """Print a row for each conversion."""
    print(f"{'':<24}{'thr':>4}{'GB/s':>8}{'limit':>8}{'share':>7}{'stock':>8}")
    for row in rows:
        name = f"{row.kind} -> {row.format} {row.recipe}"
        stock = "-" if row.stock is None else f"{row.stock:.2f}"
        wrong = "" if row.exact else "  WRONG"
        print(
            f"{name:<24}{row.threads:>4}{row.rate:8.1f}{row.limit:8.1f}{row.of_limit:7.2f}"
            f"{stock:>8}{wrong}"
        )


def names(text: str) -> list[str]:
    """Parse names that are separated by commas."""
    return text.split(",")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="separated by commas")
    parser.add_argument("--formats", type=names, default=list(MX_FORMATS))
    parser.add_argument("--kinds", type=names, default=["f32", "bf16"])
    parser.add_argument("--recipe", default="even")
    parser.add_argument("--mib", type=float, default=96, help="of floats")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--stock", action="store_true", help="IREE without our passes too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    others = OtherLoad()
    rows = [
        measure(kind, format, options.recipe, threads, options.mib, options.seconds, options.stock)
        for kind in options.kinds
        for format in options.formats
        for threads in options.threads
    ]
    if options.json:
        print(json.dumps([row.to_dict() for row in rows]))
    else:
        show(rows)
        print(others)
    return 0 if all(row.exact for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
