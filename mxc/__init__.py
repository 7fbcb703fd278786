"""mxc: an ahead-of-time compiler for models with microscaled (MX) weights.

The front door. Each name is loaded when it is first used, so that `import mxc` costs nothing
and a program that only runs artifacts never imports the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxc.compiler import compile
    from mxc.dialects.errors import MxcError
    from mxc.dialects.reference import Quantized, dequantize, quantize
    from mxc.runtime import load

_HOME = {
    "compile": "mxc.compiler",
    "load": "mxc.runtime",
    "quantize": "mxc.dialects.reference",
    "dequantize": "mxc.dialects.reference",
    "Quantized": "mxc.dialects.reference",
    "MxcError": "mxc.dialects.errors",
}

__all__ = ["MxcError", "Quantized", "compile", "dequantize", "load", "quantize"]


def __getattr__(name: str) -> Any:
    """Load `name` from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'mxc' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
