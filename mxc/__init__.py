"""mxc: an ahead-of-time compiler for models with microscaled (MX) weights.

This is the public API. Each name is loaded at first use, so that `import mxc` is fast, and a
program that only runs artifacts never imports the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxc.compiler import compile
    from mxc.compiler.pipelines import pipeline
    from mxc.compiler.quantize.checkpoint import quantize_checkpoint
    from mxc.errors import MxcError
    from mxc.formats.reference import Quantized, dequantize, quantize
    from mxc.formats.scale_spec import ScaleSpec
    from mxc.formats.scaled_tensor import Scaled, dequantize_scaled
    from mxc.formats.scaling import quantize_scaled
    from mxc.runtime import load

_HOME = {
    "compile": "mxc.compiler",
    "load": "mxc.runtime",
    "pipeline": "mxc.compiler.pipelines",
    "quantize": "mxc.formats.reference",
    "dequantize": "mxc.formats.reference",
    "Quantized": "mxc.formats.reference",
    "quantize_checkpoint": "mxc.compiler.quantize.checkpoint",
    "quantize_scaled": "mxc.formats.scaling",
    "dequantize_scaled": "mxc.formats.scaled_tensor",
    "Scaled": "mxc.formats.scaled_tensor",
    "ScaleSpec": "mxc.formats.scale_spec",
    "MxcError": "mxc.errors",
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
    "pipeline",
    "quantize",
    "quantize_checkpoint",
    "quantize_scaled",
]


def __getattr__(name: str) -> Any:
    """Load `name` from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'mxc' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
