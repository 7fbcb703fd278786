"""The MLIR context of all tools of this package."""

from iree.compiler import ir


def prepare(context: ir.Context) -> ir.Context:
    """Load all dialects and disable multithreading of a context, in place.

    Dialects are otherwise loaded lazily: a builder would create unregistered operations, and a
    frozen pattern would never match, both without an error. A verifier failure deadlocks with
    multithreading.
    """
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    return context


def new_context() -> ir.Context:
    """A fresh context that refuses operations of unknown dialects."""
    return prepare(ir.Context())
