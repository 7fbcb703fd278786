"""The request of `mxc convert`, and the plan that follows from it before weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.canonical.codecs import narrowed
from mxc.compiler.checkpoints.canonical.stored import FileTensor, Interleaved, WeightPart
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.gguf import NAME as GGUF
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.convert.gguf import CONFIG_KEY, DTYPES_KEY, plan_gguf
from mxc.compiler.convert.layers import plan_compressed_tensors, plan_gpt_oss, plan_quark
from mxc.compiler.convert.libraries import plan_modelopt, plan_torchao
from mxc.compiler.convert.plan import ConversionPlan
from mxc.compiler.convert.writing import ConvertedFiles
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.configs.gguf import published_config, stores_norms
from mxc.compiler.models.configs.gguf_rope import DIVISORS, FACTORS
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.errors import CheckpointError, RequestError

PLANS: Mapping[str, Callable[[CheckpointSource], ConversionPlan]] = {
    "gpt-oss": plan_gpt_oss,
    "quark": plan_quark,
    "compressed-tensors": plan_compressed_tensors,
    GGUF: plan_gguf,
    "modelopt": plan_modelopt,
    "torchao": plan_torchao,
}


@dataclass(frozen=True, kw_only=True)
class PreparedConversion:
    """A request with its source opened: headers are read, and everything to write is known.

    `texts` are tokenizer files that were in a GGUF source.
    """

    plan: ConversionPlan
    texts: Mapping[str, bytes]
    writing: ConvertedFiles


@dataclass(frozen=True, kw_only=True)
class ConversionRequest:
    """The source of a conversion and its dialect; as a Job it is opened in other processes."""

    source: Path
    to: str

    def open(self) -> ConvertedFiles:
        """Return the object that computes pieces, in a worker process."""
        return self.planned().writing

    def planned(self) -> PreparedConversion:
        """Open the source and plan. Raises as `convert`, except for errors of the output."""
        if self.to not in PLANS:
            raise RequestError(f"unknown dialect {self.to!r}; mxc writes {', '.join(PLANS)}")
        source = open_checkpoint(self.source)
        texts: Mapping[str, bytes] = {}
        if self.to != GGUF:
            if source.dialect == GGUF:
                texts = text_files(source.config, str(self.source))
            source = _with_config(source)
        elif source.dialect == GGUF:
            raise RequestError(f"{self.source}: is GGUF already; copy it")
        plan = PLANS[self.to](source)
        return PreparedConversion(plan=plan, texts=texts, writing=ConvertedFiles(plan, self.to))


def _with_config(source: CheckpointSource) -> CheckpointSource:
    """Return the source with a config.json, and with the dtypes that its tensors had before
    GGUF."""
    if source.dialect != GGUF:
        return source
    kept = source.config.get(CONFIG_KEY)
    if not isinstance(kept, str) or stores_norms(source.config):
        place = str(source.path)
        made, tensors = published_config(source.config, source.tensors, place)
        made.pop("quantization_config", None)
        # An incomplete config is refused here rather than by a reader of the output.
        read_decoder(made, place)
        return replace(source, config=made, tensors=tensors)
    config = _json(kept, source, CONFIG_KEY)
    dtypes = _json(str(source.config.get(DTYPES_KEY, "{}")), source, DTYPES_KEY)
    tensors = {
        name: _narrowed(tensor, dtypes.get(name), source)
        for name, tensor in source.tensors.items()
        if name not in (DIVISORS, *FACTORS)  # config.json declares these
    }
    return replace(source, config=config, tensors=tensors)


def _json(text: str, source: CheckpointSource, key: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source.path}: {key} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source.path}: {key} is no JSON object")
    return value


def _narrowed(tensor: CanonicalTensor, dtype: Any, source: CheckpointSource) -> CanonicalTensor:
    if dtype is None:
        return tensor
    if dtype not in ("BF16", "F16") or tensor.dtype != "F32":
        raise CheckpointError(
            f"{source.path}: {DTYPES_KEY} says {tensor.name} was {dtype!r}, it is {tensor.dtype}; "
            "the file is damaged"
        )
    codec = narrowed(DTYPES[str(dtype)])

    def narrow(part: WeightPart) -> FileTensor:
        if not isinstance(part, FileTensor):
            raise AssertionError(f"{part.name} is of no GGUF")
        return replace(part, dtype=str(dtype), codec=codec)

    elements = tensor.elements
    if isinstance(elements, Interleaved):
        interleaved = replace(
            elements, parts=tuple(narrow(part) for part in elements.parts), dtype=str(dtype)
        )
        return replace(tensor, elements=interleaved, format=str(dtype).lower())
    return replace(tensor, elements=narrow(elements), format=str(dtype).lower())
