"""An opened checkpoint of any dialect, as canonical tensors.

  path -> container (safetensors, GGUF) -> dialect, recognised by config and names -> tensors

Only headers and configs are read. Files that run code when they are loaded (pickles) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.files.tensors import no_tensor
from mxc.compiler.checkpoints.layers.quantization import CheckpointQuantization
from mxc.errors import CheckpointError

__all__ = ["CheckpointSource"]

#: Key of the vision part in the config of a model with vision.
_VISION = "vision_config"
#: Prefixes of fields in such a config that are not those of its language model.
_OTHERS = ("vision_", "image_", "video_", "architectures", "quantization_config")
#: Keys of the language model's config in the config of a larger model.
_LANGUAGE_CONFIGS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """An opened checkpoint. `tensors` is by transformers' names of the parameters.

    `dialect` is a name of dialects.DIALECTS. `config` is config.json, or the metadata of a GGUF
    under its own keys (`general.architecture`, ..).
    """

    path: Path
    dialect: str
    config: Mapping[str, Any]
    tensors: Mapping[str, CanonicalTensor]
    quantization: CheckpointQuantization

    def tensor(self, name: str) -> CanonicalTensor:
        """Return a tensor by name. Raises CheckpointError, which names the closest ones."""
        if name in self.tensors:
            return self.tensors[name]
        raise no_tensor(name, self.tensors, self.path)


def language_config(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Return key and config of the language model inside another config; None if there is none."""
    found = ((key, config.get(key)) for key in _LANGUAGE_CONFIGS)
    named = next(((key, inner) for key, inner in found if isinstance(inner, dict)), None)
    if named is not None or not isinstance(config.get(_VISION), dict):
        return named
    # Older wrappers have the fields of the language model beside `vision_config`.
    fields = {k: v for k, v in config.items() if not k.startswith(_OTHERS)}
    return f"beside {_VISION}", {**fields, "model_type": f"{config.get('model_type')}_text"}


def by_name(tensors: list[CanonicalTensor], path: Path) -> Mapping[str, CanonicalTensor]:
    """Return the tensors by name. Raises CheckpointError if two have the same name."""
    found: dict[str, CanonicalTensor] = {}
    for tensor in tensors:
        if (other := found.get(tensor.name)) is not None:
            raise CheckpointError(
                f"{path}: {other.place} and {tensor.place} are both {tensor.name}; "
                "remove the one that is not meant"
            )
        found[tensor.name] = tensor
    return MappingProxyType(found)
