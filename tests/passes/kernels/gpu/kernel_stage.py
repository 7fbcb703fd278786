"""Programs with their kernels in place, as MLIR."""

from typing import Any

from iree.compiler import ir

from mxc.compiler.pipelines import pipeline
from mxc.passes import base


def with_kernels(program: str | bytes, target: str, **options: Any) -> ir.Module:
    """A program after the stage "kernels" of the pipeline for a target, in the current context.
    `options`: those of the pipeline."""
    module = ir.Module.parse(program)
    for stage in pipeline(target, **options).stages:
        base.run(stage.passes, module)
        if stage.name == "kernels":
            return module
    raise AssertionError("no kernels")
