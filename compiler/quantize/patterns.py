"""Matching of tensor names with user patterns: as file names (*, ?, [..]) or regular expressions.

Python's regular expressions can take time exponential in the length of a name. They are matched in
a separate process, all together, with a time limit.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Sequence

from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut, limit_processor
from mxc.errors import FormatError

#: Prefix of a regular expression.
_REGEX = "re:"
#: Limits for all matches together: seconds, and bytes of address space.
SECONDS = 20.0
_MEMORY = 1 << 30


def named_by(patterns: Sequence[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the names that each pattern matches.

    A pattern matches whole names; after "re:" it is a regular expression that matches from the
    start. Raises FormatError for an invalid regular expression, or one that takes too long.
    """
    listed = list(names)
    found = {
        pattern: frozenset(fnmatch.filter(listed, pattern))
        for pattern in patterns
        if not pattern.startswith(_REGEX)
    }
    expressions = [pattern for pattern in patterns if pattern.startswith(_REGEX)]
    if expressions:
        found |= _matched(expressions, listed)
    return found


def _matched(expressions: Sequence[str], names: Sequence[str]) -> dict[str, frozenset[str]]:
    for pattern in expressions:
        try:
            re.compile(pattern.removeprefix(_REGEX))
        except (re.error, OverflowError, RecursionError) as error:
            raise FormatError(
                f"{pattern!r} is no regular expression ({error}); correct it"
            ) from error
    child = Child("mxc.compiler.quantize.patterns:serve", memory=_MEMORY)
    try:
        child.send(json.dumps([expressions, names]).encode())
        return {p: frozenset(json.loads(child.receive(SECONDS))) for p in expressions}
    except ChildTimedOut:
        why = f"take more than {SECONDS:g} s"
    except ChildExited as ended:
        why = f"ended their process ({ended})"
    finally:
        child.end()
    raise FormatError(
        f"the patterns {', '.join(expressions)} {why}; write them without repetitions inside of "
        "repetitions"
    )


def serve(channel: Channel) -> None:
    """Main function of the process: send the matching names for each expression."""
    limit_processor(SECONDS)
    expressions, names = json.loads(channel.receive())
    for pattern in expressions:
        expression = re.compile(pattern.removeprefix(_REGEX))
        channel.send(json.dumps([name for name in names if expression.match(name)]).encode())
