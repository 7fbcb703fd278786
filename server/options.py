"""Options that the endpoints share: sampling, response formats and tools."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from mxc.runtime.completions.constraints import Constraint, Tool
from mxc.runtime.engine.request import Sampling
from mxc.server.errors import bad
from mxc.server.fields import RequestFields

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Difference between the seeds of the choices of one request.
_NEXT_CHOICE = 1 << 64


def read_sampling(fields: RequestFields) -> Sampling:
    """Read OpenAI's sampling options, and top_k and min_p, which other servers have too."""
    top_k = fields.whole("top_k", -1, None, None)
    seed = fields.whole("seed", -(1 << 63), (1 << 63) - 1, None)
    return Sampling(
        temperature=fields.number("temperature", 0, 2, 1.0) or 0.0,
        top_p=fields.number("top_p", 0, 1, None),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        min_p=fields.number("min_p", 0, 1, None),
        seed=None if seed is None else seed % _NEXT_CHOICE,
        presence_penalty=fields.number("presence_penalty", -2, 2, 0.0) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0) or 0.0,
        logit_bias=_logit_bias(fields),
    )


def of_choice(sampling: Sampling, number: int) -> Sampling:
    """Return the sampling of choice `number` of a request: a given seed differs by choice."""
    if sampling.seed is None or not number:
        return sampling
    return replace(sampling, seed=sampling.seed + number * _NEXT_CHOICE)


def _logit_bias(fields: RequestFields) -> dict[int, float]:
    given = fields.any("logit_bias", {})
    name = fields.name("logit_bias")
    if not isinstance(given, dict):
        raise bad(f"{name} must be an object", name)
    bias = {}
    for token, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not token.isdecimal() or len(token) > 9 or not number or not -100 <= value <= 100:
            raise bad(f"{name} must have numbers from -100 to 100 by token id", name)
        bias[int(token)] = float(value)
    return bias


@dataclass(frozen=True)
class Tools:
    """The tools of a request.

    `listed`: all functions. `given`: functions for the chat template. `wanted`: tools of which one
    must be called; empty where no call is required. `choice`: tool_choice as the request has it.
    """

    listed: tuple[dict[str, Any], ...] = ()
    given: tuple[dict[str, Any], ...] = ()
    wanted: tuple[Tool, ...] = field(default_factory=tuple)
    choice: Any = "auto"


def read_tools(fields: RequestFields, *, flat: bool) -> Tools:
    """Read tools and tool_choice; `flat`: a tool's fields are beside its type (/v1/responses)."""
    given: list[dict[str, Any]] = []
    for index, each in enumerate(fields.items("tools")):
        place = f"tools[{index}]."
        outer = RequestFields(each, place)
        if outer.required("type") != "function":
            raise bad(f"{place}type: only functions are supported", f"{place}type", "unsupported")
        inner = outer if flat else RequestFields(outer.required("function"), f"{place}function.")
        name = inner.required("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise bad(
                f"{inner.name('name')} must be 1 to 64 letters, digits, '.', '_' or '-'",
                inner.name("name"),
            )
        parameters = inner.any("parameters", {"type": "object", "properties": {}})
        if not isinstance(parameters, dict):
            raise bad(f"{inner.name('parameters')} must be a schema", inner.name("parameters"))
        function = {"name": name, "description": inner.text("description", "")}
        given.append({"type": "function", "function": {**function, "parameters": parameters}})
        inner.done(("strict",))
        outer.done()
    choice = fields.any("tool_choice", "auto")
    known = [Tool(each["function"]["name"], each["function"]["parameters"]) for each in given]
    if choice in ("auto", "none", "required"):
        if choice == "required" and not given:
            raise bad("tool_choice is required, and there are no tools", "tool_choice")
        # With "none", the template gets no functions.
        return Tools(
            listed=tuple(given),
            given=() if choice == "none" else tuple(given),
            wanted=tuple(known) if choice == "required" else (),
            choice=choice,
        )
    chosen = RequestFields(choice, "tool_choice.")
    kind = chosen.required("type")
    if kind != "function":
        raise bad("tool_choice.type: only function is supported", "tool_choice", "unsupported")
    inner = chosen if flat else RequestFields(chosen.required("function"), "tool_choice.function.")
    name = inner.required("name")
    wanted = tuple(tool for tool in known if tool.name == name)
    if not wanted:
        raise bad("tool_choice names a function that tools does not have", "tool_choice")
    return Tools(tuple(given), tuple(given), wanted, choice)


def read_format(given: RequestFields | None, *, flat: bool) -> Constraint | None:
    """Read response_format; `flat`: a schema's fields are beside its type (/v1/responses)."""
    if given is None:
        return None
    kind = given.required("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(json_schema={"type": "object"})
    if kind == "regex":
        expression = given.text("regex")
        if not expression:
            raise bad(f"{given.name('regex')} must be an expression", given.name("regex"))
        return Constraint(regex=expression)
    if kind == "json_schema":
        inner = (
            given
            if flat
            else RequestFields(given.required("json_schema"), given.name("json_schema."))
        )
        schema = inner.required("schema")
        if not isinstance(schema, dict | bool):
            raise bad(f"{inner.name('schema')} must be a schema", inner.name("schema"))
        return Constraint(json_schema=schema)
    raise bad(
        f"{given.name('type')} must be text, json_object, json_schema or regex", given.name("type")
    )
