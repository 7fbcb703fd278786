"""Tries tokenizer and chat template while compiling, so that errors appear before generation.

A tokenizer and a chat template are data and a program from elsewhere. They are opened and run in a
separate process, with limits of time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxc.artifact.chat_template import ChatTemplate, TemplateRefusal
from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut, limit_processor
from mxc.artifact.manifest import TOKENIZER, TOKENIZER_CONFIG
from mxc.artifact.text_files import TextFiles, open_tokenizer, read_text_files, telling_panics
from mxc.errors import CheckpointError, MxcError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Limits of the whole check: seconds, and bytes of address space.
SECONDS = 120.0
MEMORY = 8 << 30

#: The text that is encoded and decoded, alone and as a chat message.
_TRIED = "Grüße, world! 12 + 3 = 15\n\t你好 🚀"

#: Special tokens that generation needs at the start and end.
_NEEDED = ("bos_token", "eos_token")


def check_texts(
    folder: Path, place: Path, *, vocab_size: int, eos_tokens: Sequence[int]
) -> list[str]:
    """Try the tokenizer and the chat template in `folder`; return notes for the user.

    vocab_size: number of the model's logits; eos_tokens: ids that end generation. Raises
    CheckpointError, with `place` as the name of the checkpoint, if one of the two is broken,
    exceeds the limits of time or memory, or contradicts the model.
    """
    if not (folder / TOKENIZER).is_file():
        return []
    child = Child("mxc.compiler.tokenizers.check:serve", memory=MEMORY)
    request = {"folder": str(folder), "vocab_size": vocab_size, "eos_tokens": list(eos_tokens)}
    try:
        child.send(json.dumps(request).encode())
        answer = json.loads(child.receive(SECONDS))
    except ChildTimedOut:
        why = f"trying it did not end within {SECONDS:g} s"
    except ChildExited as ended:
        why = f"trying it ended its process ({ended})"
    else:
        if "refusal" not in answer:
            return list(answer["notes"])
        why = answer["refusal"].replace(str(folder), str(place))
        raise CheckpointError(why if str(place) in why else f"{place}: {why}")
    finally:
        child.end()
    raise CheckpointError(
        f"{place / TOKENIZER}: {why}; fetch the tokenizer's files again, or remove them and "
        "generate with --prompt-tokens"
    )


def serve(channel: Channel) -> None:
    """Main function of the process: one request, one answer."""
    limit_processor(SECONDS)
    request = json.loads(channel.receive())
    answer: dict[str, Any]
    try:
        answer = {"notes": list(_check(Path(request.pop("folder")), **request))}
    except MxcError as error:
        answer = {"refusal": str(error)}
    except MemoryError:
        answer = {"refusal": f"{TOKENIZER}: using it takes more than {MEMORY >> 30} GiB of memory"}
    channel.send(json.dumps(answer).encode())


def _check(folder: Path, vocab_size: int, eos_tokens: Sequence[int]) -> Iterator[str]:
    files = read_text_files(folder)
    tokenizer = open_tokenizer(folder / TOKENIZER)
    yield from _vocabulary(tokenizer, vocab_size)
    _try(tokenizer, _TRIED, "some text", vocab_size)
    yield from _special_tokens(tokenizer, files, eos_tokens)
    if files.overridden:
        yield (
            f"{TOKENIZER_CONFIG} has another chat template than {files.template_place}, which is "
            "the one that is used"
        )
    if files.template is None:
        return
    template = ChatTemplate(files.template, files.template_place)
    messages = [{"role": "user", "content": _TRIED}]
    try:
        chat = template.render(messages, tools=None, documents=None, **files.special_tokens)
    except TemplateRefusal as refusal:
        yield f"of a single user message: {refusal}"
    except MxcError as error:
        said = str(error).replace("; use --raw", "")
        raise CheckpointError(
            f"{said}; correct {files.template_place}, or remove the template from the checkpoint"
        ) from error
    else:
        _try(tokenizer, chat, "a chat", vocab_size)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Iterator[str]:
    """Raise for vocabulary that the model does not have; yield a note for added tokens beyond it.

    Some published checkpoints have such added tokens, which no text needs.
    """
    base = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    _within((id for id in base.values() if id not in added), vocab_size, "its vocabulary")
    beyond = sorted(id for id in added if id >= vocab_size)
    if beyond:
        yield (
            f"{TOKENIZER} has {len(beyond)} added tokens of which the model has none, such as "
            f"{added[beyond[0]].content!r} ({beyond[0]}): text with them is refused"
        )


def _try(tokenizer: Tokenizer, text: str, what: str, vocab_size: int) -> None:
    """Encode and decode a text; raise CheckpointError if that fails."""
    with telling_panics(f"{TOKENIZER}: cannot encode {what}", CheckpointError):
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    with telling_panics(f"{TOKENIZER}: cannot decode {what}", CheckpointError):
        tokenizer.decode(ids, skip_special_tokens=False)
    _within(ids, vocab_size, what)


def _within(ids: Iterable[int], vocab_size: int, what: str) -> None:
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise CheckpointError(
            f"{TOKENIZER}: {what} has the token {largest}, and the model's vocabulary is 0 to "
            f"{vocab_size - 1}; fetch the tokenizer that belongs to the checkpoint"
        )


def _special_tokens(
    tokenizer: Tokenizer, files: TextFiles, eos_tokens: Sequence[int]
) -> Iterator[str]:
    """Raise for, or note, special tokens that contradict the tokenizer or the model."""
    for name, text in files.special_tokens.items():
        if tokenizer.token_to_id(text) is not None:
            continue
        said = f"{TOKENIZER_CONFIG}: {name} is {text[:60]!r}, which {TOKENIZER} does not have"
        if name in _NEEDED:
            raise CheckpointError(f"{said}; fetch the files that belong together")
        yield said
    eos = files.special_tokens.get("eos_token")
    if eos is not None and eos_tokens and tokenizer.token_to_id(eos) not in eos_tokens:
        listed = ", ".join(map(str, eos_tokens))
        yield (
            f"{TOKENIZER_CONFIG}: eos_token is {eos!r} ({tokenizer.token_to_id(eos)}), and "
            f"generation ends at {listed}, as the model's config says"
        )
