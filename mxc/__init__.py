"""mxc: an ahead-of-time compiler for models with microscaled (MX) weights.

The front door. Each name is loaded when it is first used, so that `import mxc` costs nothing
and a program that only runs artifacts never imports the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxc.compiler import compile
    from mxc.compiler.quantize.checkpoint import quantize_checkpoint
    from mxc.dialects.errors import MxcError
    from mxc.dialects.reference import Quantized, dequantize, quantize
    from mxc.dialects.scale_spec import ScaleSpec
    from mxc.dialects.scaled_tensor import Scaled, dequantize_scaled
    from mxc.dialects.scaling import quantize_scaled
    from mxc.runtime import load

_HOME = {
    "compile": "mxc.compiler",
    "load": "mxc.runtime",
    "quantize": "mxc.dialects.reference",
    "dequantize": "mxc.dialects.reference",
    "Quantized": "mxc.dialects.reference",
    "quantize_checkpoint": "mxc.compiler.quantize.checkpoint",
    "quantize_scaled": "mxc.dialects.scaling",
    "dequantize_scaled": "mxc.dialects.scaled_tensor",
    "Scaled": "mxc.dialects.scaled_tensor",
    "ScaleSpec": "mxc.dialects.scale_spec",
    "MxcError": "mxc.dialects.errors",
}

__all__ = [
    "MxcError",
    "Quantized",
    "ScaleSpec",
    "Scaled",
    "compile",
    "dequantize",
    "dequantize_scaled",
    "load",
    "quantize",
    "quantize_checkpoint",
    "quantize_scaled",
]


def __getattr__(name: str) -> Any:
    """Load `name` from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'mxc' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
