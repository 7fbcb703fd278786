"""The files of a checkpoint, or of an artifact, that turn text into tokens and back.

tokenizer.json belongs to the tokenizers library. tokenizer_config.json names the special tokens
that a chat template prints, and may hold the template itself; chat_template.jinja takes precedence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER_CONFIG
from mxc.errors import ArtifactError, MxcError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CURE = "fetch the tokenizer's files again"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """The contents of the files beside tokenizer.json.

    `template` is the chat template, found in the file `template_place`; `special_tokens` are
    bos_token and similar tokens, as text. `overridden`: tokenizer_config.json has another template,
    which is not used.
    """

    template: str | None
    template_place: str
    special_tokens: dict[str, str]
    overridden: bool = False


def read_text_files(folder: Path) -> TextFiles:
    """Read tokenizer_config.json and chat_template.jinja of a folder; either may be missing.

    Raises ArtifactError for a file that is malformed, and for a field of a wrong type.
    """
    file = folder / TOKENIZER_CONFIG
    config = _config(file)
    tokens = _special_tokens(config, file)
    named = _named_template(config.get("chat_template"), file)
    own = folder / CHAT_TEMPLATE
    if not own.is_file():
        return TextFiles(template=named, template_place=TOKENIZER_CONFIG, special_tokens=tokens)
    text = _text(own)
    return TextFiles(
        template=text,
        template_place=CHAT_TEMPLATE,
        special_tokens=tokens,
        overridden=named is not None and named != text,
    )


def open_tokenizer(file: Path) -> Tokenizer:
    """Open a tokenizer.json. Raises ArtifactError where the file is not a tokenizer."""
    from tokenizers import Tokenizer

    with telling_panics(f"{file}: not a tokenizer", ArtifactError, f"; {_CURE}"):
        return Tokenizer.from_file(str(file))


@contextmanager
def telling_panics(what: str, kind: type[MxcError], cure: str = "") -> Iterator[None]:
    """Raise `kind` for any error of the tokenizers library.

    The library raises nothing more precise than Exception, and its panics are BaseExceptions.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        said = " ".join(str(error).split())[:300]
        raise kind(f"{what} ({said}){cure}") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error}); {_CURE}") from error


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file}: not JSON ({error}); {_CURE}") from error
    if not isinstance(config, dict):
        raise ArtifactError(f"{file}: wants an object, got {type(config).__name__}; {_CURE}")
    return config


def _named_template(found: Any, file: Path) -> str | None:
    """The template in tokenizer_config.json, which holds one string, or a list of named ones."""
    if found is None or isinstance(found, str):
        return found
    named = {}
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        named = {str(each.get("name")): each.get("template") for each in found}
        if all(isinstance(template, str) for template in named.values()):
            return named.get("default")
    raise ArtifactError(
        f"{file}: chat_template: wants a string, or a list of objects with name and template, "
        f"found {str(found)[:60]}; {_CURE}"
    )


def _special_tokens(config: dict[str, Any], file: Path) -> dict[str, str]:
    """bos_token and similar tokens, as text: each is a string or an object with its content."""
    tokens: dict[str, str] = {}
    extra = config.get("extra_special_tokens")
    for name, value in {**config, **(extra if isinstance(extra, dict) else {})}.items():
        # Names like add_bos_token are switches.
        if not name.endswith("_token") or value is None or isinstance(value, bool):
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str):
            raise ArtifactError(
                f"{file}: {name}: wants a string or an object with its content, found "
                f"{str(value)[:60]}; {_CURE}"
            )
        tokens[name] = content
    return tokens
