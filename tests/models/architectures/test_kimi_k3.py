"""Kimi K3: what is refused of its config and of its weights."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.model import open_model
from mxc.errors import CheckpointError
from tests.models.architectures.kimi_k3 import TEXT, write

_RATES = "language_model.model.layers.0.self_attn.A_log"


@pytest.mark.parametrize(
    ("fields", "linear", "said"),
    [
        ({"hidden_act": "silu"}, {}, "hidden_act 'silu' is not supported; supported: 'situ'"),
        ({"activation_situ_beta": None}, {}, "activation_situ_beta is missing"),
        ({"mla_use_output_gate": False}, {}, "mla_use_output_gate False is not supported"),
        ({"latent_moe_use_norm": False}, {}, "latent_moe_use_norm False is not supported"),
        ({"routed_expert_hidden_size": None}, {}, "routed_expert_hidden_size is missing"),
        ({"attn_res_block_size": 0}, {}, "a positive integer for attn_res_block_size, found 0"),
        ({}, {"gate_lower_bound": 5.0}, "a negative number for gate_lower_bound, found 5.0"),
        ({}, {"use_full_rank_gate": False}, "use_full_rank_gate False is not supported"),
        ({}, {"gate_upper_bound": 1.0}, "field gate_upper_bound = 1.0 is not known"),
        # Without attention residuals it is a Kimi Linear, which has none of these.
        ({"attn_res_block_size": None}, {}, "hidden_act 'situ' is not supported"),
    ],
)
def test_configs_that_are_refused(
    fields: dict[str, Any], linear: dict[str, Any], said: str
) -> None:
    config = copy.deepcopy(TEXT) | fields
    config["linear_attn_config"] |= linear
    with pytest.raises(CheckpointError, match=said):
        read_decoder(config, "config.json")


def test_linear_beta_may_be_missing() -> None:
    """Then up is not bent."""
    found = read_decoder(TEXT | {"activation_situ_linear_beta": None}, "config.json")
    assert [layer.mlp.activation.linear_beta for layer in found.layers] == [None] * 5


def test_only_zeros_may_follow_the_rates_of_heads(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint")
    model = open_model(tmp_path / "checkpoint")
    (rates,) = (each for each in model.bound if each.key == "model.layers.0.self_attn.A_log")
    file = tmp_path / "checkpoint" / "model.safetensors"
    stored = load_file(file)
    assert stored[_RATES].shape == (32,)
    np.testing.assert_array_equal(rates.tensors[0].values().reshape(-1), stored[_RATES][:4])
    stored[_RATES][31] = 0.5
    save_file(stored, file)
    with pytest.raises(CheckpointError, match=r"A_log is \[4 = linear_num_heads\]"):
        open_model(tmp_path / "checkpoint")
