"""The models of a server, which requests select by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.completions.token_text import TokenBytes
from mxc.server.errors import ApiError, bad
from mxc.server.fields import RequestFields
from mxc.server.metrics import Metrics
from mxc.server.settings import Settings


@dataclass
class ServedModel:
    """One model with its name."""

    name: str
    model: TextModel
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """Maps token ids of the model to bytes."""
        return TokenBytes(self.model.text.tokenizer)

    def described(self) -> dict[str, object]:
        """Return the model's entry in /v1/models."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "mxc",
            "max_model_len": self.model.engine.longest,
        }


class Served:
    """The state that the routes share: models, settings and metrics."""

    def __init__(self, models: Mapping[str, TextModel], settings: Settings) -> None:
        """models: text models by name."""
        self.models = {name: ServedModel(name, model) for name, model in models.items()}
        self.settings = settings
        self.metrics = Metrics()
        for name, model in models.items():
            self.metrics.watch(name, model.engine)

    def find(self, name: str) -> ServedModel:
        """Return the model called `name`; ApiError (404) where there is none."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                404,
                f"there is no model {name[:100]!r} here; there is: {known}",
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    def read_model(self, fields: RequestFields) -> ServedModel:
        """Read the field "model" of a request and return that model."""
        name = fields.required("model")
        if not isinstance(name, str):
            raise bad("model must be a string", "model")
        return self.find(name)

    def close(self) -> None:
        """Close every engine."""
        for served in self.models.values():
            served.model.close()
