"""Implementation of `model.generate(...)`: prompts in, whole answers or a stream out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from mxc.errors import RequestError
from mxc.runtime.completions.constraints import Constraint
from mxc.runtime.completions.stream import AnswerStream, Completion
from mxc.runtime.completions.text_model import Prompt, TextModel
from mxc.runtime.engine.request import Sampling
from mxc.runtime.option_checks import whole

#: Text or tokens that are continued as they stand, or the messages of a chat.
OnePrompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]


#: What a prompt may be.
_WANTED = "generate wants text, token ids, messages, or a list of these"


def prompts_of(prompt: OnePrompt | Sequence[OnePrompt]) -> list[OnePrompt] | None:
    """Return the list of prompts, or None for a single prompt; RequestError for anything else.

    Token ids are integers of Python or numpy, in a list or an array.
    """
    if isinstance(prompt, str):
        return None
    given = _listed(prompt)
    if not given:
        raise RequestError("generate wants a prompt, got an empty list")
    if any(isinstance(each, Mapping) or whole(each) is not None for each in given):
        return None
    for each in given:
        if not isinstance(each, str):
            _listed(each)
    return cast("list[OnePrompt]", given)


def _listed(given: Any) -> list[Any]:
    """Return the elements of a list or an array; RequestError for anything else."""
    if not isinstance(given, Mapping | str | bytes):
        try:
            return list(given)
        except TypeError:
            pass
    raise RequestError(f"{_WANTED}, found {_shown(given)}")


def _shown(value: Any) -> str:
    """The beginning of a value, on one line."""
    return " ".join(repr(value).split())[:80]


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
    variables = _variables(tools, template)
    given = _prompt(model, prompt, variables)
    if variables and given.chat is None:
        raise RequestError(
            f"{'tools are' if tools else 'template is'} for the messages of a chat, and the prompt "
            "is text or tokens, which are continued as they stand"
        )
    if json_schema is not None and regex is not None:
        raise RequestError("an answer matches json_schema or regex, found both; give one of them")
    if not isinstance(regex, str | None):
        raise RequestError(f"regex must be a text, got {regex!r}")
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(each, str) for each in stops):
        raise RequestError(f"stop must be a text or a list of texts, got {stop!r}")
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
        stop=stops,
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
    given = _listed(prompt)
    messages = [each for each in given if isinstance(each, Mapping)]
    if messages and len(messages) == len(given):
        return model.chat(messages, **variables)
    tokens = [token for token in map(whole, given) if token is not None]
    if len(tokens) == len(given):
        return Prompt(tuple(tokens))
    kind, fits = "token ids", [whole(each) is not None for each in given]
    if isinstance(given[0], Mapping):
        kind, fits = "messages", [isinstance(each, Mapping) for each in given]
    other = given[fits.index(False)]
    raise RequestError(f"{_WANTED}, found {_shown(other)} among the {kind} of one prompt")


def _variables(
    tools: Sequence[Mapping[str, Any]] | None, template: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the variables of the chat template; RequestError for tools or variables that are
    none."""
    if not isinstance(template, Mapping | None):
        raise RequestError(f"template must be variables by name, got {template!r}")
    if tools is not None and (
        not isinstance(tools, Sequence) or not all(isinstance(each, Mapping) for each in tools)
    ):
        raise RequestError(f"tools must be a list of objects in OpenAI's format, got {tools!r}")
    return {**(template or {}), **({"tools": list(tools)} if tools else {})}
