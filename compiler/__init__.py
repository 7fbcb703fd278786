"""The compiler: from a checkpoint or a program to an artifact."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxc.compiler.artifact import Artifact
    from mxc.compiler.compilation import compile
    from mxc.compiler.steps import Progress

# Loaded when first used: the command line, which lives in this package, starts without IREE.
_HOME = {
    "Artifact": "mxc.compiler.artifact",
    "Progress": "mxc.compiler.steps",
    "compile": "mxc.compiler.compilation",
}

__all__ = ["Artifact", "Progress", "compile"]


def __getattr__(name: str) -> Any:
    """Load `name` from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'mxc.compiler' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
