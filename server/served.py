"""The models of a server, by the names that requests give."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.completions.token_text import TokenBytes
from mxc.server.errors import ApiError, bad
from mxc.server.fields import Fields
from mxc.server.metrics import Metrics
from mxc.server.settings import Settings


@dataclass
class ServedModel:
    """One model under its name."""

    name: str
    model: TextModel
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of its tokens."""
        return TokenBytes(self.model.text.tokenizer)

    def described(self) -> dict[str, object]:
        """As /v1/models lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "mxc",
            "max_model_len": self.model.engine.longest,
        }


class Served:
    """What the routes share."""

    def __init__(self, models: Mapping[str, TextModel], settings: Settings) -> None:
        """`models` by name."""
        self.models = {name: ServedModel(name, model) for name, model in models.items()}
        self.settings = settings
        self.metrics = Metrics()
        for name, model in models.items():
            self.metrics.watch(name, model.engine)

    def find(self, name: str) -> ServedModel:
        """A model; ApiError (404) where there is none of that name."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                404,
                f"there is no model {name[:100]!r} here; there is: {known}",
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    def read_model(self, fields: Fields) -> ServedModel:
        """The model that a request names."""
        name = fields.required("model")
        if not isinstance(name, str):
            raise bad("model must be a string", "model")
        return self.find(name)

    def close(self) -> None:
        """End every engine."""
        for served in self.models.values():
            served.model.close()
