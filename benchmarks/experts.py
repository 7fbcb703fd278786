"""Time a layer of experts of torch: kernels of mxc, and torch expert by expert, on this CPU.

    python benchmarks/experts.py [--threads 2] [--seconds 2] [--hidden 1024] [--inner 2048]

The layer gathers the matrices of the experts of each token (`up[ids]`) and computes batched
products, which torch.export supports. For torch's own time it computes one expert after another
with the rows that chose it, as eager models do. Both alternate in one process, and the median time
of each counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn.functional import silu

import mxc
from mxc.runtime.session import Model

EXPERTS, CHOSEN = 8, 2
TOKENS = (2, 32, 256)


class Layer(torch.nn.Module):
    """A gate, a projection up and one down for each expert, with weights of a float type.

    Arguments: x [tokens, hidden], and for each token the ids and the shares (factors of the
    results) of its experts, both [tokens, CHOSEN].
    """

    def __init__(self, hidden: int, inner: int, kind: torch.dtype) -> None:
        """Draw weights."""
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * inner, hidden, dtype=kind) / 32)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, hidden, inner, dtype=kind) / 32)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Compute the layer in the form that is exported: gathered matrices, batched products."""
        pairs, rows = ids.reshape(-1), x.repeat_interleave(CHOSEN, 0)
        gate, up = torch.bmm(self.up[pairs], rows[..., None])[..., 0].chunk(2, -1)
        made = torch.bmm(self.down[pairs], (silu(gate) * up)[..., None])[..., 0]
        return (made * shares.reshape(-1, 1)).view(*ids.shape, -1).sum(1)

    def by_expert(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Compute the same layer one expert after another."""
        found = torch.zeros_like(x)
        for expert in range(EXPERTS):
            token, place = torch.where(ids == expert)
            if len(token):
                gate, up = (x[token] @ self.up[expert].t()).chunk(2, -1)
                made = (silu(gate) * up) @ self.down[expert].t()
                found.index_add_(0, token, made * shares[token, place, None])
        return found


def drawn(tokens: int, hidden: int, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Draw x, ids and shares, the arguments of a layer."""
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)])
    return torch.randn(tokens, hidden, dtype=kind), ids, torch.rand(tokens, CHOSEN, dtype=kind)


def array(tensor: torch.Tensor) -> Any:
    """Return a tensor as a numpy array, the form in which an artifact takes its arguments."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def milliseconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median time of each call in milliseconds; the calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["mxc"]) < 3:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


def row(model: Model, layer: Layer, given: tuple[torch.Tensor, ...], seconds: float) -> str:
    """Measure the layer on one set of arguments, and return a line of the table."""
    arrays = [array(each) for each in given]
    wanted = layer.by_expert(*given).float().numpy()
    found = np.asarray(model.call("main", *arrays)[0]).astype(np.float32)
    difference = np.abs(found - wanted).max() / np.abs(wanted).max()
    took = milliseconds(
        {"mxc": lambda: model.call("main", *arrays), "torch": lambda: layer.by_expert(*given)},
        seconds,
    )
    ours, theirs = took["mxc"], took["torch"]
    kind, tokens = str(given[0].dtype).removeprefix("torch."), len(arrays[0])
    return (
        f"| {kind} | {tokens} | {ours:.2f} ms | {theirs:.2f} ms | {theirs / ours:.2f} | "
        f"{difference:.0e} |"
    )


@torch.no_grad()
def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| experts | tokens | mxc | torch | torch / mxc | difference |")
    print("|---|---|---|---|---|---|")
    for kind in (torch.float32, torch.bfloat16):
        layer = Layer(options.hidden, options.inner, kind).eval()
        size = {0: torch.export.Dim("tokens", min=2, max=4096)}
        given = drawn(6, options.hidden, kind)
        program = torch.export.export(layer, given, dynamic_shapes=(size,) * 3)
        with tempfile.TemporaryDirectory() as folder:
            made = mxc.compile(program, output=Path(folder) / "layer.mxc")
            model = mxc.load(made.path, threads=options.threads)
            for tokens in TOKENS:
                print(row(model, layer, drawn(tokens, options.hidden, kind), options.seconds))


if __name__ == "__main__":
    main()
