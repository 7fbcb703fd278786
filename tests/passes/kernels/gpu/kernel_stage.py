"""Programs after the compiler stage that inserts kernels, as MLIR."""

from typing import Any

from iree.compiler import ir

from mxc.compiler.pipelines import pipeline
from mxc.passes import base


def with_kernels(program: str | bytes, target: str, **options: Any) -> ir.Module:
    """Parse a program in the current context, run the pipeline of a target up to and including the
    stage "kernels", and return the module. `options`: those of the pipeline."""
    module = ir.Module.parse(program)
    for stage in pipeline(target, **options).stages:
        base.run(stage.passes, module)
        if stage.name == "kernels":
            return module
    raise AssertionError("no kernels")
