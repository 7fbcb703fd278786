"""Implementation of `model.generate(...)`: prompts in, whole answers or a stream out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from mxc.errors import RequestError
from mxc.runtime.completions.constraints import Constraint
from mxc.runtime.completions.stream import AnswerStream, Completion
from mxc.runtime.completions.text_model import Prompt, TextModel
from mxc.runtime.engine.request import Sampling

#: Text or tokens that are continued as they stand, or the messages of a chat.
OnePrompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]


def prompts_of(prompt: OnePrompt | Sequence[OnePrompt]) -> list[OnePrompt] | None:
    """Return the list of prompts, or None for a single prompt; RequestError for anything else."""
    if isinstance(prompt, str):
        return None
    given = list(prompt)
    if not given:
        raise RequestError("generate wants a prompt, got an empty list")
    if all(isinstance(each, int) for each in given):
        return None
    if all(isinstance(each, Mapping) for each in given):
        return None
    if not all(isinstance(each, Sequence) for each in given):
        raise RequestError("generate wants text, token ids, messages, or a list of these")
    return cast("list[OnePrompt]", given)


def start(
    model: TextModel,
    prompt: OnePrompt,
    *,
    max_new_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    tools: Sequence[Mapping[str, Any]] | None = None,
    json_schema: Any = None,
    regex: str | None = None,
    special: bool = False,
    template: Mapping[str, Any] | None = None,
    logprobs: int | None = None,
    **sampling: Any,
) -> AnswerStream:
    """Start one answer and return its stream; `Model.generate` documents the options."""
    variables: dict[str, Any] = {**(template or {}), **({"tools": list(tools)} if tools else {})}
    given = _prompt(model, prompt, variables)
    constraint = None
    if json_schema is not None or regex is not None:
        constraint = Constraint(json_schema=json_schema, regex=regex)
    try:
        options = Sampling(top_logprobs=logprobs, **sampling)
    except TypeError as error:
        raise RequestError(f"generate knows no option of that name: {error}") from error
    return model.start(
        given,
        max_tokens=max_new_tokens,
        sampling=options,
        stop=(stop,) if isinstance(stop, str) else stop,
        tools=bool(tools),
        constraint=constraint,
        special=special,
    )


def generate(
    model: TextModel, prompt: OnePrompt | Sequence[OnePrompt], **options: Any
) -> Completion | list[Completion]:
    """Return whole answers; the answers of several prompts are computed together."""
    prompts = prompts_of(prompt)
    if prompts is None:
        return start(model, cast("OnePrompt", prompt), **options).result()
    streams: list[AnswerStream] = []
    try:
        streams += [start(model, each, **options) for each in prompts]
        return [stream.result() for stream in streams]
    finally:
        for stream in streams:
            stream.cancel()


def _prompt(model: TextModel, prompt: OnePrompt, variables: Mapping[str, Any]) -> Prompt:
    if isinstance(prompt, str):
        return model.plain(prompt)
    messages = [each for each in prompt if isinstance(each, Mapping)]
    if messages:
        return model.chat(messages, **variables)
    return Prompt(tuple(each for each in prompt if isinstance(each, int)))
