"""Load an artifact and run it. Never imports the compiler.

`load` is imported from mxc.runtime.session at its first use, so that modules which need no IREE
(the checks of an artifact, sampling, text) do not pay for importing it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxc.runtime.batch import Batch
    from mxc.runtime.sampling import Sampler
    from mxc.runtime.sequence import Sequence
    from mxc.runtime.session import Model, load

_HOME = {
    "Batch": "mxc.runtime.batch",
    "Model": "mxc.runtime.session",
    "Sampler": "mxc.runtime.sampling",
    "Sequence": "mxc.runtime.sequence",
    "load": "mxc.runtime.session",
}

__all__ = ["Batch", "Model", "Sampler", "Sequence", "load"]


def __getattr__(name: str) -> Any:
    """Load `name` from its module at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'mxc.runtime' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
