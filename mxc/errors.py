"""Exceptions for errors of the user, whose messages say what was wanted, what was found, where, and
what to do.

The command line prints such an error as one line and exits with status 1. A bug of mxc is an
ordinary exception with a traceback.
"""

from __future__ import annotations


class MxcError(Exception):
    """Base class of these errors."""


class FormatError(MxcError):
    """Unknown format or recipe, or data that the format cannot hold."""


class TargetError(MxcError):
    """Unknown target, or a target that cannot do what was asked."""


class CheckpointError(MxcError):
    """A checkpoint that is incomplete, contradictory, or of an unknown kind."""


class PassError(MxcError):
    """IR that a pass must not rewrite silently. `place`: where it is in the user's source."""

    def __init__(self, message: str, place: str = "") -> None:
        """Prepend `place`, if any, to the message."""
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class CompileError(MxcError):
    """The compilation failed in `phase`; the message names the file that keeps the IR."""

    def __init__(self, message: str, phase: str) -> None:
        """`phase` is a phase of IREE, "start" before the first, or "report" after the last."""
        super().__init__(message)
        self.phase = phase

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        """Return what pickle needs to recreate the exception in another process."""
        return CompileError, (str(self), self.phase)


class ArtifactError(MxcError):
    """An artifact that is incomplete, altered, or not for this machine or version."""


class WorkerError(MxcError):
    """A worker process or a cluster was lost. Finished work is kept: the same command
    resumes it."""


class CodeObjectError(MxcError):
    """A code object with malformed content or metadata, or for another target."""


class RequestError(MxcError):
    """A call that the artifact cannot serve: unknown function, wrong shapes, prompt too long."""
