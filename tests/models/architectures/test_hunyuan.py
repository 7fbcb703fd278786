"""Configs of Hunyuan: as published and as transformers saves them, and what is refused."""

from typing import Any

import pytest

from mxc.compiler.models.architectures import read_decoder
from mxc.errors import CheckpointError

HUNYUAN: dict[str, Any] = {
    "model_type": "hunyuan_v1_dense",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
STRETCHED = {"alpha": 50.0, "factor": 1.0}


def test_both_spellings_of_a_stretched_base() -> None:
    old = HUNYUAN | {"rope_scaling": STRETCHED | {"type": "dynamic"}, "rope_theta": 1e4}
    new = STRETCHED | {"rope_type": "dynamic", "rope_theta": 1e4}
    found = read_decoder(old | {"attention_head_dim": 16, "use_qk_norm": True}, "config.json")
    assert found == read_decoder(HUNYUAN | {"rope_parameters": new}, "config.json")
    with pytest.raises(CheckpointError, match="that of rope_parameters for rope_theta, found 5"):
        read_decoder(HUNYUAN | {"rope_parameters": new, "rope_theta": 5.0}, "config.json")
    with pytest.raises(CheckpointError, match="rope_type 'dynamic' is not supported"):
        read_decoder(HUNYUAN | {"rope_parameters": {"rope_type": "dynamic"}}, "config.json")
    with pytest.raises(CheckpointError, match="attention_head_dim 8 is not supported"):
        read_decoder(HUNYUAN | {"attention_head_dim": 8}, "config.json")
