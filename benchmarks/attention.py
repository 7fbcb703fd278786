"""Time attention of programs from torch: kernels of mxc, IREE's attention, and torch, on this CPU.

    python benchmarks/attention.py [--threads 2] [--seconds 2]

Each shape is a program with `scaled_dot_product_attention`, compiled by mxc; the same computation
as one `iree_linalg_ext.attention`, which IREE tiles and vectorizes; and torch itself. They
alternate in one process, and the median time of each counts. A call copies its arguments and its
result in all three. The last columns are the ratios of IREE's and torch's time to that of mxc, and
the largest difference between the results of mxc and torch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import mxc

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """One case: `heads` query heads, in groups of `group` that share a key/value head.

    `depth`: elements of a head. `tokens`: queries of a sequence. `keys`: keys of a sequence.
    """

    name: str
    batch: int
    heads: int
    group: int
    tokens: int
    keys: int
    depth: int
    causal: bool = False

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The shapes of queries, keys and values."""
        keys = self.batch, self.heads // self.group, self.keys, self.depth
        return [(self.batch, self.heads, self.tokens, self.depth), keys, keys]


SHAPES = (
    Shape("BERT, 8 texts of 128 tokens", 8, 12, 1, 128, 128, 64),
    Shape("GPT-2, 1024 tokens, causal", 1, 12, 1, 1024, 1024, 64, causal=True),
    Shape("Llama, 512 tokens, causal, groups of 4", 1, 32, 4, 512, 512, 128, causal=True),
    Shape("Llama, 1 token, 2048 keys, groups of 4", 1, 32, 4, 1, 2048, 128),
)


class Attention(torch.nn.Module):
    """The attention of a shape, as a torch module."""

    def __init__(self, shape: Shape) -> None:
        """Build the module."""
        super().__init__()
        self.shape = shape

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Call torch's function."""
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.shape.causal, enable_gqa=self.shape.group > 1
        )


def iree_program(shape: Shape) -> str:
    """Return a program of one `iree_linalg_ext.attention`. A causal mask is its last argument."""
    batch, heads = shape.batch, shape.heads // shape.group
    group, tokens, keys, depth = shape.group, shape.tokens, shape.keys, shape.depth
    of_q = f"tensor<{batch}x{heads}x{group}x{tokens}x{depth}xf32>"
    of_k = f"tensor<{batch}x{heads}x{keys}x{depth}xf32>"
    mask = f"tensor<{tokens}x{keys}xf32>"
    given, read, more = "", "", ""
    if shape.causal:
        given, read, more = f", %mask: {mask}", ", %mask", f", {mask}"
    loops = "(b, h, g, m, n, k, l)"
    reads = [
        "b, h, g, m, k",
        "b, h, l, k",
        "b, h, l, n",
        "",
        *["m, l"][: shape.causal],
        "b, h, g, m, n",
    ]
    maps = ", ".join(f"affine_map<{loops} -> ({each})>" for each in reads)
    return f"""
func.func @main(%q: {of_q}, %k: {of_k}, %v: {of_k}{given}) -> {of_q} {{
  %scale = arith.constant {depth**-0.5:.9e} : f32
  %empty = tensor.empty() : {of_q}
  %y = iree_linalg_ext.attention <{{indexing_maps = [{maps}]}}>
      ins(%q, %k, %v, %scale{read} : {of_q}, {of_k}, {of_k}, f32{more}) outs(%empty : {of_q}) {{
    ^bb0(%score: f32):
      iree_linalg_ext.yield %score : f32
  }} -> {of_q}
  return %y : {of_q}
}}
"""


def calls(shape: Shape, folder: Path, threads: int) -> dict[str, Callable[[], Array]]:
    """Return for mxc, IREE and torch a call that computes the attention and returns the result."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size).astype(np.float32) for size in shape.sizes]
    tensors = [torch.from_numpy(each) for each in arrays]
    module = Attention(shape)
    program = torch.export.export(module, tuple(tensors))
    ours = mxc.load(mxc.compile(program, output=folder / "mxc.mxc").path, threads=threads)
    file = folder / "iree.mlir"
    file.write_text(iree_program(shape))
    theirs = mxc.load(mxc.compile(file, output=folder / "iree.mxc").path, threads=threads)
    grouped = [
        arrays[0].reshape(shape.batch, -1, shape.group, shape.tokens, shape.depth),
        *arrays[1:],
    ]
    if shape.causal:
        later = np.triu(np.ones((shape.tokens, shape.keys), bool), 1)
        grouped.append(np.where(later, -np.inf, 0).astype(np.float32))

    def of_torch() -> Array:
        with torch.no_grad():
            found: Array = module(*(each.clone() for each in tensors)).numpy().copy()
        return found

    return {
        "mxc": lambda: ours.call("main", *arrays)[0],
        "IREE": lambda: theirs.call("main", *grouped)[0].reshape(shape.sizes[0]),
        "torch": of_torch,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| attention | mxc | IREE | torch | IREE / mxc | torch / mxc | difference |")
    print("|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            every = calls(shape, Path(folder), options.threads)
            results = {name: call() for name, call in every.items()}
            times: dict[str, list[float]] = {name: [] for name in every}
            until = time.monotonic() + options.seconds * len(every)
            while time.monotonic() < until:
                for name, call in every.items():
                    start = time.perf_counter()
                    call()
                    times[name].append(time.perf_counter() - start)
        least = {name: statistics.median(each) for name, each in times.items()}
        ratios = " | ".join(f"{least[name] / least['mxc']:.2f}" for name in ("IREE", "torch"))
        shown = " | ".join(f"{1e3 * each:.2f} ms" for each in least.values())
        difference = np.abs(results["mxc"] - results["torch"]).max()
        print(f"| {shape.name} | {shown} | {ratios} | {difference:.0e} |", flush=True)


if __name__ == "__main__":
    main()
