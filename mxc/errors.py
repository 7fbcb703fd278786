"""Refusals: what was wanted, what was found, where, and what to do.

The command line prints a refusal as one line and exits with 1. A bug of ours is never one of
these: it stays an ordinary exception with its trace.
"""

from __future__ import annotations


class MxcError(Exception):
    """Base of every refusal."""


class FormatError(MxcError):
    """Unknown format or recipe, or data that the format cannot hold."""


class TargetError(MxcError):
    """Unknown target, or a target that cannot do what was asked."""


class CheckpointError(MxcError):
    """A checkpoint that is incomplete, contradicts itself, or is of a kind that is not known."""


class PassError(MxcError):
    """A pass met IR that it must not rewrite silently. `location` is the place in the input IR."""

    def __init__(self, message: str, location: object | None = None) -> None:
        """`location` is put before the message."""
        super().__init__(message if location is None else f"{location}: {message}")
        self.location = location


class CompileError(MxcError):
    """The compiler stopped: `phase` says in which phase, the message where its IR is kept."""

    def __init__(self, message: str, phase: str) -> None:
        """`phase` is a phase of IREE, "start" before the first, or "report" after the last."""
        super().__init__(message)
        self.phase = phase

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        """Cross the border of a process whole."""
        return CompileError, (str(self), self.phase)


class ArtifactError(MxcError):
    """An artifact that is incomplete, altered, or not for this machine or version."""


class WorkerError(MxcError):
    """A worker process or a cluster was lost. What is done stays: the same command resumes it."""


class CodeObjectError(MxcError):
    """A code object or its metadata that is malformed, or is not for the target."""


class RequestError(MxcError):
    """A call that the artifact cannot serve: unknown function, wrong shapes, prompt too long."""
