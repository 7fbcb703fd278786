"""The measures of mxc eval, beside torch's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mxc.compiler.cli import app
from mxc.errors import RequestError
from mxc.runtime import evaluation, load
from mxc.runtime.evaluation import evaluate, kl_divergence, log_softmax


def test_measures_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.normal(0, 4, (2, 7, 100)).astype(np.float32)
    q[0, 3] = -np.inf  # excluded by q: it adds nothing
    logs = [torch.log_softmax(torch.from_numpy(each).double(), 1) for each in (p, q)]
    assert np.allclose(log_softmax(p), logs[0].numpy(), rtol=1e-13, atol=1e-13)
    wanted = torch.nn.functional.kl_div(logs[0], logs[1], reduction="none", log_target=True)
    wanted[0, 3] = 0
    assert np.allclose(kl_divergence(log_softmax(q), log_softmax(p)), wanted.sum(1), rtol=1e-12)


@pytest.mark.parametrize("window", [None, 5, 4, 2])
def test_windows_of_a_text(toy_artifact: Path, window: int | None) -> None:
    """Each token but the first of a window, given those before it; the logits of toy.mlir."""
    tokens = [0, 1, 0, 6, 6, 0, 6, 2, 0]
    losses = []
    for start in range(0, len(tokens), window or len(tokens)):
        piece = np.array(tokens[start : start + (window or len(tokens))])
        for t in range(len(piece) - 1):
            place = np.arange(1, t + 2)
            first, second = (((place + h) * (piece[: t + 1] + 1)).sum() for h in range(2))
            logits = torch.tensor([first + second * v for v in range(7)]).double()
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(piece[t + 1])))
    found = evaluate(load(toy_artifact), tokens, window=window)
    assert found.predicted == len(losses)
    wanted = torch.stack(losses)
    assert math.isclose(math.log(found.model.perplexity), wanted.mean(), rel_tol=1e-12)
    error = wanted.std(correction=0) / math.sqrt(len(losses))
    assert math.isclose(found.model.error / found.model.perplexity, error, rel_tol=1e-12)


def test_progress_is_in_tokens_of_the_text(
    toy_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_FED", 3)
    told: list[tuple[int, int]] = []
    tokens = [0, 1, 0, 6, 6, 0, 6, 2, 0]
    evaluate(load(toy_artifact), tokens, window=5, progress=lambda *at: told.append(at))
    # The last token of a window is not fed.
    assert told == [(3, 9), (4, 9), (8, 9)]


def test_against_itself(toy_artifact: Path) -> None:
    model = load(toy_artifact)
    found = evaluate(model, [1, 2, 6, 3], against=model)
    assert found.against == found.model
    assert found.difference is not None
    assert (found.difference.largest_kl, found.difference.agreement) == (0, 1)
    assert found.difference.not_finite == 0


@pytest.mark.parametrize(
    ("tokens", "window", "said"),
    [
        ([1], None, "1 tokens predicts nothing"),
        ([1, 2, 3], 1, "window of 1 tokens: give 2 to"),
        ([1, 2, 3], 1 << 20, "give 2 to"),
        ([1, 1 << 20, 1], None, "outside of the vocabulary"),
    ],
)
def test_refusals(toy_artifact: Path, tokens: list[int], window: int | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        evaluate(load(toy_artifact), tokens, window=window)


def test_command(toy_artifact: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w6 w6")
    words = ["eval", toy_artifact, "--perplexity", text, "--against", toy_artifact]
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, shown.stderr
    assert "3 tokens predicted" in shown.stdout
    assert "same most likely token" in shown.stdout
    found = CliRunner().invoke(app, [str(word) for word in (*words, "--json")])
    assert json.loads(found.stdout)["difference"]["mean_kl"] == 0
    refused = CliRunner().invoke(
        app, ["eval", str(toy_artifact), "--perplexity", str(tmp_path / "none")]
    )
    assert refused.exit_code == 1
    assert "cannot be read (No such file" in refused.stderr
