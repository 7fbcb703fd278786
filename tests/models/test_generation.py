"""The tokens that a model goes on with: those of transformers' greedy search."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from mxc.compiler.cli import app
from mxc.runtime.completions.opened import open_engine
from mxc.runtime.completions.token_stream import start_tokens
from mxc.runtime.evaluation import evaluate
from tests.models.conftest import Compiled

NEW_TOKENS = 64

CASES: dict[str, dict[str, Any]] = {
    "in-turn": {
        "options": GptOssOptions(
            hidden_size=96,
            num_hidden_layers=2,
            num_local_experts=6,
            num_experts_per_tok=3,
            vocab_size=1009,
        ),
        "activations": "f32",
        "length": 17 + NEW_TOKENS,
    },
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_greedy_tokens(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """From Python and from the command line, up to the last position that the artifact holds."""
    built = compiled(case)
    prompt = built.tokens[:17]
    with torch.no_grad():
        answer = built.reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )
    wanted = answer.sequences[0, len(prompt) :].tolist()
    # The case is worth its name: no stop token came, nothing is repeated, no choice was a near tie.
    assert len(wanted) == NEW_TOKENS
    assert len(set(wanted)) > NEW_TOKENS // 2
    best = torch.stack(answer.logits).topk(2).values
    assert float((best[..., 0] - best[..., 1]).min()) > 1e-3

    engine = open_engine(built.model)
    assert start_tokens(engine, prompt, NEW_TOKENS).result().tokens == wanted
    engine.close()
    words = ["generate", built.artifact, "--prompt-tokens", ",".join(map(str, prompt))]
    words += ["--max-new-tokens", NEW_TOKENS, "--json"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tokens"] == wanted


@each_case
def test_generation_stops_where_transformers_does(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """The stop tokens are those of generation_config.json."""
    built = compiled(case)
    stops = built.model.manifest.model.eos_tokens
    assert set(stops) == set(built.reference.generation_config.eos_token_id)
    engine, prompt = open_engine(built.model), built.tokens[:17]
    tokens = start_tokens(engine, prompt, 8).result().tokens
    ended = start_tokens(engine, prompt, 8, ends=tokens[3:4]).result().tokens
    engine.close()
    assert ended == tokens[: tokens.index(tokens[3]) + 1]
    assert np.isin(tokens, stops).sum() == 0


@each_case
def test_perplexity(case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]) -> None:
    """That of transformers' logits."""
    built = compiled(case)
    wanted = torch.nn.functional.cross_entropy(
        torch.from_numpy(built.wanted[:-1]), torch.tensor(built.tokens[1:])
    )
    found = evaluate(built.model, built.tokens).model.perplexity
    assert found == pytest.approx(math.exp(wanted), rel=1e-5)
