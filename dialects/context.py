"""The MLIR context that every tool of ours starts from."""

from iree.compiler import ir


def prepare(context: ir.Context) -> ir.Context:
    """Load all dialects and turn threads off, in place.

    Dialects load lazily otherwise: a builder would then create unregistered operations, and a
    frozen pattern would never match, both without an error. A verifier failure deadlocks while
    context threads are on.
    """
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    return context


def new_context() -> ir.Context:
    """A fresh context that refuses operations of unknown dialects."""
    return prepare(ir.Context())
