"""Token counts of a response, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxc.runtime.completions.deltas import REASONING
from mxc.runtime.completions.stream import Completion


def usage(prompt_tokens: int, answers: Sequence[Completion]) -> dict[str, Any]:
    """Return the token counts of a request; a prompt counts once, whatever its choices."""
    generated = sum(len(answer.drawn) for answer in answers)
    outcomes = [answer.outcome for answer in answers if answer.outcome is not None]
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {
            "cached_tokens": outcomes[0].cached_tokens if outcomes else 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.kinds.count(REASONING) for answer in answers),
        },
    }
