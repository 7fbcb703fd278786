"""A small tokenizer in the form of gpt-oss: byte-level BPE, harmony tokens, a chat template."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from string import ascii_lowercase

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

#: The control tokens of the harmony format, in the order of their numbers in gpt-oss:
#: https://github.com/openai/harmony
SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)

#: All 256 bytes are tokens, so that any text can be encoded; then the control tokens.
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.role not in ('system', 'developer', 'user', 'assistant') -%}
    {{- raise_exception('unknown role ' ~ message.role) -}}
  {%- endif -%}
  {{- '<|start|>' ~ message.role -}}
  {%- if message.role == 'assistant' -%}
    {{- '<|channel|>final' -}}
  {%- endif -%}
  {{- '<|message|>' ~ message.content ~ '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start|>assistant' -}}
{%- endif -%}
"""

# Text for training the merges; any text would do.
_TEXT = (
    "A block of thirty-two elements shares one scale, and the scale is a power of two.",
    "The elements are small numbers; the scale says how large the block is as a whole.",
    "A program that reads the packed bytes moves a quarter of the memory of one that does not.",
    "Prefill reads the prompt in chunks, decode writes one token after the other.",
    "What is the capital of France? The capital of France is Paris.",
    "Once upon a time there was a compiler that said what it did and did what it said.",
    "for i in range(32): total += scale * element[i]",
    "You are a helpful assistant. Answer the question of the user in one short sentence.",
)


def write_tokenizer(folder: Path, vocab_size: int) -> dict[str, int]:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; return control tokens by
    name.

    Every id below `vocab_size` is a token, so that any output of a model can be decoded. Ids beyond
    the trained tokens get made-up words that encoding never produces. Raises ValueError for a size
    below SMALLEST_VOCABULARY.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"a byte-level tokenizer needs {SMALLEST_VOCABULARY} tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    # Added after training, so that their ids follow those of the text, as in gpt-oss.
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    stored = json.loads(tokenizer.to_str())
    stored["model"]["vocab"] = _filled(tokenizer.get_vocab(), vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in SPECIAL_TOKENS}


def _filled(tokens: dict[str, int], vocab_size: int) -> dict[str, int]:
    """Return the tokens in the order of their ids, with made-up words up to `vocab_size`."""
    found = dict(sorted(tokens.items(), key=lambda item: item[1]))
    words = ("".join(word) for word in itertools.product(ascii_lowercase, repeat=4))
    for word in words:
        if len(found) >= vocab_size:
            break
        found.setdefault(f"Ġ{word}", len(found))
    return found
