"""Renders prompts and starts answers in threads, because templates and tokenizers are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mxc.runtime.completions.constraints import Constraint
from mxc.runtime.completions.stream import AnswerStream
from mxc.runtime.completions.text_model import Prompt
from mxc.runtime.engine.request import Sampling
from mxc.server.errors import bad, template_errors
from mxc.server.metrics import Metrics
from mxc.server.options import of_choice
from mxc.server.served import Served, ServedModel


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options of the answers to one prompt; `choices`: number of answers per prompt. `one_call`: an
    answer ends after its first call."""

    sampling: Sampling
    max_tokens: int | None
    stop: tuple[str, ...] = ()
    choices: int = 1
    tools: bool = False
    one_call: bool = False
    constraint: Constraint | None = None
    past_end: bool = False


async def chat_prompt(
    served: ServedModel, messages: Sequence[dict[str, Any]], variables: dict[str, Any]
) -> Prompt:
    """Render messages with the model's template.

    Raises ApiError where the model has no template, or the template refuses the messages.
    """
    if not served.model.text.has_chat_template:
        raise bad(f"the model {served.name} has no chat template; ask for a completion", "messages")
    with template_errors():
        return await asyncio.to_thread(served.model.chat, messages, **variables)


async def start(
    shared: Served, served: ServedModel, prompts: Sequence[Prompt], asked: AnswerOptions
) -> list[AnswerStream]:
    """Queue every choice of every prompt, or none of them where one is refused.

    Raises ApiError for a prompt that is too long.
    """
    most = shared.settings.prompt_tokens
    for prompt in prompts:
        if most is not None and len(prompt.tokens) > most:
            raise bad(
                f"the prompt has {len(prompt.tokens)} tokens, this server takes {most}",
                code="context_length_exceeded",
            )
        longest = served.model.engine.longest
        wanted = len(prompt.tokens) + (asked.max_tokens or 1) - 1
        if wanted > longest:
            raise bad(
                f"this model's maximum context length is {longest} tokens; the request has "
                f"{len(prompt.tokens)} in its prompt and asks for {asked.max_tokens or 1} more",
                code="context_length_exceeded",
            )
    # In a thread, because compiling a grammar is slow too.
    return await asyncio.to_thread(_start, served, shared.metrics, prompts, asked)


def _start(
    served: ServedModel, metrics: Metrics, prompts: Sequence[Prompt], asked: AnswerOptions
) -> list[AnswerStream]:
    streams: list[AnswerStream] = []
    try:
        for prompt in prompts:
            for choice in range(asked.choices):
                stream = served.model.start(
                    prompt,
                    max_tokens=asked.max_tokens,
                    sampling=of_choice(asked.sampling, choice),
                    stop=asked.stop,
                    tools=asked.tools,
                    one_call=asked.one_call,
                    constraint=asked.constraint,
                    past_end=asked.past_end,
                    on_end=lambda outcome: metrics.answered(served.name, outcome),
                )
                streams.append(stream)
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
    return streams
