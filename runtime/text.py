"""Text to tokens and back, with the tokenizer and the chat template of an artifact."""

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

#: The character that a tokenizer decodes invalid or incomplete UTF-8 to.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: An incomplete UTF-8 character has at most this many bytes.
_LONGEST_PREFIX = 3
#: Number of tokens after which held text is released: no character is spread over so many.
_LONGEST_WAIT = 16


class Text:
    """The tokenizer of an artifact, with its chat template if it has one."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, special_tokens: dict[str, str]
    ) -> None:
        """Keep the parts; use `Text.load` instead of calling this directly."""
        self.tokenizer = tokenizer
        self.special_tokens = special_tokens
        self._template = template

    @property
    def template(self) -> str | None:
        """The source of the chat template, or None."""
        return None if self._template is None else self._template.text

    @staticmethod
    def load(path: Path) -> Text:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of an artifact.

        Starts a process for the chat template, if there is one. Raises ArtifactError where there is
        no tokenizer or a file is malformed.
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
        """Return the token ids of `text`.

        add_special_tokens: whether to add the tokenizer's special tokens around the text; a
        rendered chat has them already. Raises RequestError for text with surrogates, which command
        line arguments have for bytes that are not UTF-8.
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
        """Render `messages` ({"role", "content"}) in the model's format, up to the answer's start.

        variables: further variables of the template ("tools", "reasoning_effort"), as JSON values.
        Raises ArtifactError without a template or for a malformed one, RequestError where the
        template refuses the messages or fails on them.
        """
        if self._template is None:
            raise ArtifactError("the artifact has no chat template; use --raw")
        given = {"tools": None, "documents": None, **self.special_tokens, **variables}
        return self._template.render(messages, **given)

    def decoder(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a new incremental decoder."""
        return Detokenizer(self.tokenizer, skip_special_tokens=skip_special_tokens)


class Detokenizer:
    """Decodes tokens incrementally; bytes of an incomplete character are held back."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Start at the beginning of a text."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # Decoded together: tokens whose text was returned already (a decoder may treat the first
        # token of a text differently), then tokens whose text is not wholly returned.
        self._given: list[int] = []
        self._held: list[int] = []
        self._sent = 0

    def push(self, token: int) -> str:
        """Return the text that `token` completes, maybe none."""
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
        """Return the text held back, with replacement characters for incomplete characters."""
        before, text = self._pending()
        rest = text[len(before) + self._sent :]
        self._given, self._held, self._sent = [], [], 0
        return rest

    def _pending(self) -> tuple[str, str]:
        """Return the text of the given tokens, and that of the given and the held tokens."""
        return self._decode(self._given), self._decode(self._given + self._held)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=self._skip)
        return text


class StopStrings:
    """Ends a stream of text before the first of some stop strings, even across pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: strings to stop at. Raises RequestError for an empty string."""
        if "" in stops:
            raise RequestError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        #: The text after the stop string in the piece that completed it.
        self.rest = ""

    def push(self, piece: str) -> str:
        """Add text; return the text known to precede any stop string, "" after one is found."""
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
        """Return the text held back because a stop string might have begun in it."""
        rest, self._held = self._held, ""
        return rest


def _trailing(text: str) -> int:
    """Return how many replacement characters at the end of `text` the next token may complete."""
    return min(_LONGEST_PREFIX, len(text) - len(text.rstrip(_REPLACEMENT)))


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` could begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
