"""Measure attention over pages on AMX tiles, and compare with mxc's AVX-512 kernel.

    python benchmarks/cpu/tile_attention.py [--models gpt-oss-20b,..] [--tokens 512,1] [--keys 8192]
        [--threads 2] [--seconds 2] [--json]

Queries are the last tokens of a sequence of `--keys` keys in bf16. Both kernels alternate, and the
minimum time of each counts. The results of both, on values of variance 1, must agree within
MOST_DIFFERENCE. On a machine without AMX, or without permission to use it, the script says so and
the exit status is 0. It is 1 if a prompt is below its wanted figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import func
from limits import TILES, Machine, numbers
from programs import Loaded, Program, compile_build
from repetitions import interleave
from tiles import VECTORS

from mxc.compiler import iree
from mxc.dialects.attention import Runs, attention
from mxc.dialects.pages import Pages
from mxc.dialects.parameters import Parameters
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.runtime.other_load import OtherLoad
from mxc.targets.target import target

#: Wanted ratio of the speed on tiles to that of the AVX-512 kernel, and the least number of tokens
#: for which it is wanted.
WANTED, PROMPT = 3.0, 512
#: Positions (tokens) of a page of keys and values.
PAGE = 64
#: Largest allowed difference between the kernels' results, which are weighted means of values.
MOST_DIFFERENCE = 3e-5


@dataclass(frozen=True)
class Model:
    """The attention of a model: `heads` key/value heads, `group` query heads for each, `depth`
    elements of a head, and the size of the sliding window in tokens (None: full attention)."""

    heads: int
    group: int
    depth: int
    window: int | None = None


MODELS = {
    "gpt-oss-20b": Model(8, 8, 64),
    "gpt-oss-20b-window": Model(8, 8, 64, window=128),
    "qwen3-30b-a3b": Model(4, 8, 128),
}


@dataclass(frozen=True)
class Row:
    """Attention of the last `tokens` tokens: milliseconds on tiles (`ms`) and with AVX-512, GFLOP/s
    on tiles, the peak of tiles in the same repetitions, and the difference of the results."""

    model: str
    tokens: int
    keys: int
    ms: float
    vectors_ms: float
    gflops: float
    peak: float
    difference: float

    @property
    def passes(self) -> bool | None:
        """Whether the ratio is as wanted; None if none is wanted for so few tokens."""
        if self.tokens < PROMPT:
            return None
        return self.vectors_ms >= WANTED * self.ms


def program(cpu: str, models: list[str]) -> Program:
    """Compile a program for the target `cpu` with a function for each model."""

    def build(parameters: Parameters) -> None:
        f32, bf16, i32 = ir.F32Type.get(), ir.BF16Type.get(), ir.IntegerType.get_signless(32)
        some = ir.ShapedType.get_dynamic_size()
        for name in models:
            model = MODELS[name]
            shapes = [
                ([some, model.heads, model.group, model.depth], f32),
                ([model.heads, model.group], f32),
                ([some], i32),
                ([some, 3], i32),
                ([some, 2, PAGE, model.heads, model.depth], bf16),
                ([some, some], i32),
            ]
            kinds = [ir.RankedTensorType.get(sizes, kind) for sizes, kind in shapes]

            def main(
                queries: ir.Value,
                sinks: ir.Value,
                positions: ir.Value,
                runs: ir.Value,
                pool: ir.Value,
                lists: ir.Value,
                model: Model = model,
            ) -> ir.Value:
                return attention(
                    queries,
                    sinks,
                    Runs(positions, runs),
                    Pages(pool, lists, None),
                    (0, 1),
                    mixed=model.depth,
                    reach=model.window,
                    scale=model.depth**-0.5,
                    bits=16,
                )

            func.FuncOp.from_py_func(*kinds, name=name)(main)

    return compile_build(build, cpu)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows. Raises AssertionError if the results of both kernels differ."""
    machine = Machine(options.threads, 64)
    programs = {
        name: Loaded(program(cpu, options.models).code, {}, options.threads)
        for name, cpu in (("tiles", "cpu"), ("vectors", VECTORS))
    }
    rng = np.random.default_rng(0)
    for name in options.models:
        model = MODELS[name]
        pages = options.keys // PAGE
        shape = [pages, 2, PAGE, model.heads, model.depth]
        pool = rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
        for tokens in options.tokens:
            before = options.keys - tokens
            positions = np.arange(before, options.keys, dtype=np.int32)
            arrays = [
                rng.standard_normal([tokens, model.heads, model.group, model.depth], np.float32),
                rng.standard_normal([model.heads, model.group], np.float32),
                positions,
                np.array([[0, tokens, before]], np.int32),
                pool,
                rng.permutation(pages)[None].astype(np.int32),
            ]
            calls = {"peak": machine.calls[TILES]}
            results = {}
            for key, loaded in programs.items():
                calls[key] = loaded.prepare(name, *(loaded.put(each) for each in arrays))
                results[key] = loaded.read(calls[key]())
            difference = float(np.abs(results["tiles"] - results["vectors"]).max())
            assert difference < MOST_DIFFERENCE, f"{name}, {tokens} tokens: {difference}"
            times = interleave(calls, seconds=options.seconds)
            seen = np.minimum(positions + 1, model.window or options.keys).sum()
            operations = 4 * model.heads * model.group * model.depth * int(seen)
            yield Row(
                model=name,
                tokens=tokens,
                keys=options.keys,
                ms=1e3 * times["tiles"].least,
                vectors_ms=1e3 * times["vectors"].least,
                gflops=operations / times["tiles"].least / 1e9,
                peak=machine.rate(TILES, times["peak"].least),
                difference=difference,
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="gpt-oss-20b,gpt-oss-20b-window,qwen3-30b-a3b")
    parser.add_argument("--tokens", type=numbers, default=[512, 1])
    parser.add_argument("--keys", type=int, default=8192, help="a multiple of 64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.models = options.models.split(",")
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"--models: {', '.join(sorted(unknown))} not in {', '.join(MODELS)}")
    if options.keys % PAGE or options.keys < max(options.tokens):
        parser.error(f"--keys: {options.keys} is no multiple of {PAGE}, or less than the tokens")
    return options


def main() -> int:
    options = parse()
    if best_isa(iree.resolve(target("cpu"))) != "amx-bf16":
        print("this machine has no tiles of AMX, or gives none to a process: nothing to measure")
        return 0
    others = OtherLoad()
    rows = list(measure(options))
    if options.json:
        listed = [{**asdict(row), "passes": row.passes} for row in rows]
        print(json.dumps({"rows": listed, "other_cores": others.cores()}))
    else:
        _print(rows, others)
    return int(any(row.passes is False for row in rows))


def _print(rows: list[Row], others: OtherLoad) -> None:
    print(
        f"{'model':<20}{'tokens':>7}{'keys':>6}{'tiles ms':>10}{'GFLOP/s':>9}{'of peak':>9}"
        f"{'AVX-512 ms':>12}{'times':>7}{'difference':>12}"
    )
    for row in rows:
        verdict = {True: "pass", False: "FAIL", None: ""}[row.passes]
        print(
            f"{row.model:<20}{row.tokens:7}{row.keys:6}{row.ms:10.3f}{row.gflops:9.0f}"
            f"{row.gflops / row.peak:9.0%}{row.vectors_ms:12.3f}{row.vectors_ms / row.ms:7.2f}"
            f"{row.difference:12.1e}  {verdict}"
        )
    print(f"\nothers used {others}")


if __name__ == "__main__":
    sys.exit(main())
