"""The architectures that are known, and which one a config is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mxc.compiler.models.architectures import gpt_oss
from mxc.compiler.models.architectures.llama import llama
from mxc.compiler.models.architectures.mistral import mistral
from mxc.compiler.models.architectures.mixtral import mixtral
from mxc.compiler.models.architectures.qwen2 import qwen2
from mxc.compiler.models.architectures.qwen3 import qwen3
from mxc.compiler.models.architectures.qwen3_moe import qwen3_moe
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.configs.gpt_oss import parse as parse_gpt_oss
from mxc.compiler.models.decoder import Decoder
from mxc.dialects.errors import CheckpointError


@dataclass(frozen=True)
class Architecture:
    """An architecture: its two names in a config, and what reads one.

    `read` gets config.json and the name of the file for messages.
    """

    model_type: str
    name: str
    read: Callable[[dict[str, Any], str], Decoder]


def _gpt_oss(raw: dict[str, Any], place: str) -> Decoder:
    return gpt_oss.decoder(parse_gpt_oss(raw, place))


def _family(build: Callable[[Fields], Decoder]) -> Callable[[dict[str, Any], str], Decoder]:
    return lambda raw, place: build(Fields(raw, place))


#: In alphabetical order.
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("gpt_oss", "GptOssForCausalLM", _gpt_oss),
    Architecture("llama", "LlamaForCausalLM", _family(llama)),
    Architecture("mistral", "MistralForCausalLM", _family(mistral)),
    Architecture("mixtral", "MixtralForCausalLM", _family(mixtral)),
    Architecture("qwen2", "Qwen2ForCausalLM", _family(qwen2)),
    Architecture("qwen3", "Qwen3ForCausalLM", _family(qwen3)),
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _family(qwen3_moe)),
)


def read_decoder(config: Mapping[str, Any], place: str) -> Decoder:
    """The model that a config is of; `place` names the file in messages.

    Raises CheckpointError: an architecture that is not known (the message lists those that are),
    names that disagree, and what the architecture refuses.
    """
    raw = dict(config)
    names, kind = raw.get("architectures") or [], raw.get("model_type")
    if not isinstance(names, list):
        raise CheckpointError(f"{place}: wanted a list of names for architectures, found {names!r}")
    for found in ARCHITECTURES:
        if kind == found.model_type and all(name == found.name for name in names):
            return found.read(raw, place)
    said = ", ".join([*map(str, names), f"model_type {kind!r}"])
    known = ", ".join(f"{each.name} ({each.model_type})" for each in ARCHITECTURES)
    raise CheckpointError(f"{place}: architecture {said} is not supported; supported: {known}")
