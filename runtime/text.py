"""Text in, text out: the tokenizer and the chat template that the artifact keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxc.artifact.chat_template import ChatTemplate
from mxc.artifact.manifest import TOKENIZER
from mxc.artifact.text_files import open_tokenizer, read_text_files, telling_panics
from mxc.errors import ArtifactError, RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: What a tokenizer decodes bytes to that are not, or not yet, UTF-8.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: A UTF-8 character that is not complete has at most this many bytes.
_LONGEST_PREFIX = 3
#: Tokens after which nothing is held back any more: no character is spread over so many.
_LONGEST_WAIT = 16


class Text:
    """The tokenizer of an artifact, with its chat template if it has one."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, special_tokens: dict[str, str]
    ) -> None:
        """Keep the parts; `Text.load` is the way to get here."""
        self.tokenizer = tokenizer
        self.special_tokens = special_tokens
        self._template = template

    @property
    def template(self) -> str | None:
        """The chat template, as the artifact has it."""
        return None if self._template is None else self._template.text

    @staticmethod
    def load(path: Path) -> Text:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of an artifact.

        A chat template has a process from now on. Raises ArtifactError where there is no
        tokenizer or a file is malformed.
        """
        if not (path / TOKENIZER).is_file():
            raise ArtifactError(
                f"{path}: holds no {TOKENIZER}, so text cannot become tokens; "
                "use --prompt-tokens, or compile a checkpoint that has one"
            )
        files = read_text_files(path)
        template = None
        if files.template is not None:  # first, so that it starts while the tokenizer is read
            template = ChatTemplate(files.template, files.template_place)
        return Text(open_tokenizer(path / TOKENIZER), template, files.special_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; `add_special_tokens` puts those around it that the tokenizer wants.

        A rendered chat has them already. Raises RequestError for text that is not Unicode, as
        arguments of a command are whose bytes are not UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start} of the text is {text[error.start]!a}, a byte or half of "
                "a pair that is not Unicode; give it in UTF-8"
            ) from error
        with telling_panics("the tokenizer fails on this text", RequestError):
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def chat(self, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        """`messages` ({"role", "content"}) as the model was trained to read them, and the start of
        its answer.

        variables: what else the template may look at ("tools", "reasoning_effort"), as JSON.
        Raises ArtifactError without a template or for one that is malformed, RequestError where
        the template refuses the messages or fails on them.
        """
        if self._template is None:
            raise ArtifactError("the artifact has no chat template; use --raw")
        given = {"tools": None, "documents": None, **self.special_tokens, **variables}
        return self._template.render(messages, **given)

    def decoder(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A new stream of text."""
        return Detokenizer(self.tokenizer, skip_special_tokens=skip_special_tokens)


class Detokenizer:
    """Text of tokens as they come; bytes of a character that is not complete are held back."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Start at the beginning of a text."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # Decoded together: tokens given out already (a decoder may treat the first of a text
        # differently), then those that are not wholly given out.
        self._given: list[int] = []
        self._held: list[int] = []
        self._sent = 0

    def push(self, token: int) -> str:
        """The text that `token` completes, maybe none."""
        self._held.append(token)
        before, text = self._pending()
        waited = len(self._held) >= _LONGEST_WAIT
        if not waited and not text.startswith(before):
            return ""  # a run of bytes, which the decoder replaces as a whole until it is valid
        text = text[len(before) :]
        incomplete = 0 if waited else _trailing(text)
        ready = text[self._sent : len(text) - incomplete]
        self._sent += len(ready)
        if waited or (text and not incomplete):
            self._given, self._held, self._sent = self._held, [], 0
        return ready

    def finish(self) -> str:
        """What is still held back: replacement characters for bytes that never got complete."""
        before, text = self._pending()
        rest = text[len(before) + self._sent :]
        self._given, self._held, self._sent = [], [], 0
        return rest

    def _pending(self) -> tuple[str, str]:
        """The text given out, and that text with what the tokens held back may add to it."""
        return self._decode(self._given), self._decode(self._given + self._held)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=self._skip)
        return text


class StopStrings:
    """Ends a stream of text before the first of some strings, wherever its pieces are cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Strings to stop at; RequestError for an empty one, which would stop everywhere."""
        if "" in stops:
            raise RequestError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        #: What came after the stop string, in the piece that completed it.
        self.rest = ""

    def push(self, piece: str) -> str:
        """The part of the text that is known to be before any stop string; "" once one is found."""
        if self.found is not None:
            return ""
        text = self._held + piece
        at, stop = min(
            ((text.find(s), s) for s in self._stops if s in text), default=(len(text), None)
        )
        self.found = stop
        self.rest = text[at + len(stop) :] if stop else ""
        held = 0 if stop else max((_overlap(text, s) for s in self._stops), default=0)
        self._held = text[at - held : at]
        return text[: at - held]

    def finish(self) -> str:
        """What was held back because a stop string might have begun there."""
        rest, self._held = self._held, ""
        return rest


def _trailing(text: str) -> int:
    """How many replacement characters end `text` that the next token may still repair."""
    return min(_LONGEST_PREFIX, len(text) - len(text.rstrip(_REPLACEMENT)))


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` could begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
