"""Measure the error of a quantized linear layer's outputs, in dB, and the time of each method.

    python benchmarks/quantize_outputs.py [--rows 1024] [--depth 2048] [--peers]

Weights are heavy-tailed (Student t, 3 degrees of freedom). Inputs are normally distributed, with
half of their variance in depth / 8 directions and 1 % of channels 25 times larger, each scaled to
length sqrt(K) as after a norm; one seed, float32. Methods are calibrated with 4096 inputs, and the
error is measured on 2048 others. In rows with `a mxfp4`, the inputs are quantized to mxfp4 too.
torchao rounds the same weights to nearest; --peers adds other libraries with the same calibration
inputs (quantize_peers.py says what to install). Seconds are processor time. The exit status is 1 if
a figure is below WANTED.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.feedback import Feedback
from mxc.compiler.quantize.hadamard import Hadamard
from mxc.compiler.quantize.inputs import CalibrationInputs
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.formats.formats import block_format
from mxc.formats.packing import decode_elements, decode_scales
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize

Floats = NDArray[np.float32]

#: (format, method) -> least signal-to-error ratio of the outputs in dB on these weights.
WANTED = {
    ("mxfp4", "hadamard 32"): 18.6,
    ("mxfp4", "gptq"): 17.5,
    ("nvfp4", "search, weighted"): 25.4,
    ("mxfp4 a mxfp4", "hadamard 32"): 16.0,
}


def tensors(rows: int, depth: int) -> tuple[Floats, Floats, Floats]:
    """Draw weights [N, K], inputs to calibrate with [4096, K], and others to measure on [2048, K].

    `rows` is N, `depth` is K.
    """
    rng = np.random.default_rng(4)
    weights = 0.02 * rng.standard_t(3, (rows, depth))
    few = depth // 8
    mixed = rng.standard_normal((6144, few)) @ rng.standard_normal((few, depth)) * few**-0.5
    x = (mixed + rng.standard_normal((6144, depth))) * 2**-0.5
    x = x * np.where(rng.random(depth) < 0.01, 25, 1)
    x = (x / np.sqrt(np.square(x).mean(axis=1, keepdims=True))).astype(np.float32)
    return weights.astype(np.float32), x[:4096], x[4096:]


def ours(name: str, weights: Floats, inputs: CalibrationInputs | None, *, search: bool) -> Floats:
    """Quantize weights with mxc and return their dequantized values.

    `inputs`: from calibration, if any. `search`: whether scales are searched. Scales of MX formats
    are near those of the recipe RCEIL with the search, and else those of the recipe EVEN.
    """
    format = block_format(name)
    recipe = ScaleRecipe.RCEIL if search else ScaleRecipe.EVEN
    one = RowQuantizer(format=format, recipe=None if format.tensor_scale else recipe, search=search)
    whole = one.tensor(np.float32(np.abs(weights).max()))
    elements, scales, _ = one.run(weights, "weights", whole=whole, inputs=inputs)
    numbers = decode_elements(elements, format).reshape(-1, format.block)
    scales = scales.reshape(-1)
    factors = decode_scales(scales, format) if whole is None else whole.factors(scales, format)
    values: Floats = (numbers * factors[:, None]).reshape(weights.shape)
    return values


def known(x: Floats, *, feedback: bool) -> CalibrationInputs:
    """Return the calibration data of inputs [n, K]. `feedback`: whether it has what GPTQ needs."""
    gram = (x.T @ x).astype(np.float64) / len(x)
    found = Feedback.of(gram, len(x)) if feedback else None
    return CalibrationInputs(np.square(x).mean(axis=0), x[::32], found)


def torchao(name: str) -> Callable[[Floats], Floats]:
    """Return a function that quantizes weights with torchao, rounding to nearest under its default
    scales, and returns their dequantized values."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def run(weights: Floats) -> Floats:
        w = torch.from_numpy(weights)
        if name == "mxfp4":
            found = MXTensor.to_mx(w, torch.float4_e2m1fn_x2, 32).dequantize(torch.float32)
        else:
            scale = per_tensor_amax_to_scale(w.abs().max())
            found = NVFP4Tensor.to_nvfp4(w, per_tensor_scale=scale).dequantize(torch.float32)
        values: Floats = found.numpy()
        return values

    return run


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--peers", action="store_true", help="other libraries too")
    asked = parser.parse_args()
    weights, fed, x = tensors(asked.rows, asked.depth)
    outputs = x @ weights.T
    missed = []

    def show(
        format: str, way: str, made: Callable[[str], Floats], inputs: Floats = x, beside: str = ""
    ) -> None:
        started = time.process_time()
        values = made(format)
        seconds = time.process_time() - started
        error = inputs @ values.T - outputs
        found = 10 * np.log10(np.square(outputs).sum() / np.square(error).sum())
        format += beside
        least = WANTED.get((format, way))
        if least is not None and found < least:
            missed.append(f"{format}, {way}: {found:.2f} dB, wanted {least}")
        print(f"{format:14} {way:24} {found:6.2f} dB {seconds:8.2f} s", flush=True)

    def default(name: str) -> Floats:
        return ours(name, weights, None, search=False)

    def turned_default(name: str) -> Floats:
        return ours(name, turned, None, search=False)

    def weighted(name: str) -> Floats:
        return ours(name, weights, known(fed, feedback=False), search=True)

    def gptq(name: str) -> Floats:
        return ours(name, weights, known(fed, feedback=True), search=True)

    def turned_gptq(name: str) -> Floats:
        return ours(name, turned, known(turned_fed, feedback=True), search=True)

    def peer(run: Callable[[str, Floats, Floats], Floats]) -> Callable[[str], Floats]:
        return lambda name: run(name, weights, fed)

    rotation = Hadamard(asked.depth, 32)
    turned, turned_fed, turned_x = (rotation.rotate(each) for each in (weights, fed, x))
    for name in ("mxfp4", "nvfp4"):
        show(name, "torchao", lambda name: torchao(name)(weights))
        show(name, "default", default)
        show(name, "search", lambda name: ours(name, weights, None, search=True))
        show(name, "search, weighted", weighted)
        show(name, "gptq", gptq)
        show(name, "hadamard 32", turned_default, turned_x)
        show(name, "hadamard 32, gptq", turned_gptq, turned_x)

        if asked.peers:
            from quantize_peers import peers

            for way, run in peers().items():
                try:
                    show(name, way, peer(run))
                except Exception as error:  # the library may not support the format
                    print(f"{name:14} {way:24} {type(error).__name__}: {str(error)[:80]}")

    def rounded(inputs: Floats) -> Floats:
        return dequantize(quantize(inputs, "mxfp4", recipe=ScaleRecipe.EVEN))

    show("mxfp4", "default", default, rounded(x), beside=" a mxfp4")
    show("mxfp4", "hadamard 32", turned_default, rounded(turned_x), beside=" a mxfp4")
    for each in missed:
        print(each, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
