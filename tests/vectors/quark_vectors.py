"""What AMD Quark makes of the golden blocks: quark.npz, the bytes that it was seen to write.

    python -m tests.vectors.quark_vectors FOLDER

in an environment with amd-quark 0.13; `make test-oracles` makes one and compares what it writes.
The package is not needed to test: it would bring ONNX and its runtime. README.md has the layout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.vectors.mx_vectors import HERE

Array = NDArray[Any]

#: Our names, and those of Quark.
FORMATS = {
    "mxfp4": "fp4",
    "mxfp6e2m3": "fp6_e2m3",
    "mxfp6e3m2": "fp6_e3m2",
    "mxfp8e4m3": "fp8_e4m3",
    "mxfp8e5m2": "fp8_e5m2",
}
MODES = ("even", "floor", "ceil")
EPS = 2.0**-23


def main() -> None:
    import quark.torch.kernel
    from quark.torch.quantization.config.type import Dtype
    from quark.torch.quantization.utils import calculate_qmin_qmax, even_round, get_dtype_params
    from quark.torch.utils.numerics import to_e8m0_uint8
    from quark.torch.utils.pack import create_pack_method

    def scale_of(amax: torch.Tensor, dtype: str, mode: str) -> torch.Tensor:
        """PerBlockMXObserver's scale of scale_format e8m0."""
        if mode == "even":
            return even_round(amax, dtype)
        emax = get_dtype_params(dtype)[2]
        rounding = torch.floor if mode == "floor" else torch.ceil
        scale = torch.pow(2, rounding(torch.log2(amax)) - emax)
        return scale.masked_fill(scale == 0.0, EPS)

    arrays: dict[str, Array] = {}
    for name, dtype in FORMATS.items():
        with np.load(HERE / f"{name}.npz") as file:
            bits = file["x"]
        x = bits.view(np.float32)
        finite = np.isfinite(x).all(1)
        arrays[f"{name}_blocks"] = np.flatnonzero(finite).astype(np.uint16)
        blocks = torch.from_numpy(x[finite].copy())
        low, high = calculate_qmin_qmax(Dtype(dtype))
        for mode in MODES:
            scale = scale_of(blocks.abs().amax(1), dtype, mode)
            arrays[f"{name}_scales_{mode}"] = to_e8m0_uint8(scale).numpy()
            if dtype.startswith("fp8"):
                continue  # it writes no fp8 elements in groups
            elements = quark.torch.kernel.scaled_real_quantize(
                dtype, blocks, scale[:, None], None, -1, 32, low, high, 8, "per_group"
            )
            packed = create_pack_method("per_group", dtype).pack(elements, False)
            arrays[f"{name}_elements_{mode}"] = packed.view(torch.uint8).numpy()
    path = Path(sys.argv[1]) / "quark.npz"
    np.savez_compressed(path, **dict[str, Any](arrays))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
