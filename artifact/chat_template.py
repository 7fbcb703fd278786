"""Render a chat template in a separate process with limits on time and memory.

Rendering matches transformers (utils/chat_template_utils.py, `_compile_jinja_template`): the same
environment, the same functions. A template is a program from a checkpoint. jinja2's sandbox keeps
it from the machine; only a separate process can bound its time and memory. The process is started
once, so that a rendering costs one exchange of messages.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut, limit_processor
from mxc.errors import ArtifactError, RequestError

if TYPE_CHECKING:
    import jinja2

#: Limits of one rendering: seconds, including the start of the process for the first one, and bytes
#: of address space.
SECONDS = 10.0
MEMORY = 512 << 20
#: The longest text that a template may produce, in characters.
LONGEST = 16 << 20
#: Most characters of a template's own error message that are shown.
_SHOWN = 300


class TemplateRefusal(RequestError):
    """The template refuses the messages: it called raise_exception."""


class ChatTemplate:
    """A template and the process that renders it."""

    def __init__(self, text: str, place: str) -> None:
        """Start the process. `place` names the template in errors."""
        self.place = place
        self.text = text
        self._lock = threading.Lock()
        self._child: Child | None = self._start()

    def _start(self) -> Child:
        child = Child("mxc.artifact.chat_template:serve", memory=MEMORY)
        with suppress(ChildExited):  # the first rendering finds out, and says how
            child.send(json.dumps(self.text).encode())
        return child

    def render(self, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        """The text of a chat, ending with the start of the answer. May be called from several
        threads.

        Raises ArtifactError for a template with a syntax error; TemplateRefusal where the template
        refuses the messages; RequestError where it fails on them or takes too much time or memory,
        and for messages and variables that are not JSON.
        """
        try:
            request = json.dumps({"messages": list(messages), "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages for a chat template must be JSON: {error}") from error
        with self._lock:
            child, self._child = self._child or self._start(), None
            try:
                child.send(request.encode())
                answer = json.loads(child.receive(SECONDS))
            except ChildTimedOut:
                raise RequestError(
                    f"{self.place} did not end within {SECONDS:g} s; use --raw"
                ) from None
            except ChildExited as ended:
                raise RequestError(f"{self.place} ended its process ({ended}); use --raw") from None
            self._child = child  # not after an error: the next rendering starts another
        return _outcome(answer, self.place)


def _outcome(answer: dict[str, str], place: str) -> str:
    kind, said = answer["kind"], answer["text"]
    if kind == "text":
        return said
    if kind == "syntax":
        raise ArtifactError(f"{place}, {said}; use --raw, or correct it")
    if kind == "refusal":
        raise TemplateRefusal(f"the chat template refuses these messages: {said}")
    raise RequestError(f"the chat template fails on these messages: {said}; use --raw")


def serve(channel: Channel) -> None:
    """Main function of the child: receive the template, then answer one request after another."""
    limit_processor(SECONDS)
    source = json.loads(channel.receive())
    template: jinja2.Template | dict[str, str]
    try:
        template = _environment().from_string(source)
    except Exception as error:  # whatever the parser meets in a hostile text
        template = _failure(error)
    while True:
        request = json.loads(channel.receive())
        limit_processor(SECONDS)
        answer = template if isinstance(template, dict) else _rendered(template, request)
        channel.send(json.dumps(answer).encode())


def _rendered(template: jinja2.Template, request: dict[str, Any]) -> dict[str, str]:
    try:
        pieces, size = [], 0
        for piece in template.generate(
            messages=request["messages"], add_generation_prompt=True, **request["variables"]
        ):
            pieces.append(piece)
            size += len(piece)
            if size > LONGEST:
                said = f"it makes more than {LONGEST} characters"
                return {"kind": "failure", "text": said}
        return {"kind": "text", "text": "".join(pieces)}
    except Exception as error:  # a template is a program: it may raise anything
        return _failure(error)


def _failure(error: Exception) -> dict[str, str]:
    import jinja2

    said = " ".join(str(error).split())[:_SHOWN]
    if isinstance(error, jinja2.TemplateSyntaxError):
        return {"kind": "syntax", "text": f"line {error.lineno}: {said}"}
    if type(error) is jinja2.TemplateError:  # of raise_exception; jinja2 raises subclasses
        return {"kind": "refusal", "text": said}
    limit = f" (more than {MEMORY >> 20} MiB)" if isinstance(error, MemoryError) else ""
    return {"kind": "failure", "text": f"{type(error).__name__}{': ' if said else ''}{said}{limit}"}


def _environment() -> Any:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the assistant's text for training; here it has no effect."""

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            """Return the nodes of the body unchanged."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    Generation.tags = {"generation"}

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own filter escapes HTML, which no model was trained on.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def strftime_now(pattern: str) -> str:
        return datetime.datetime.now().strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
