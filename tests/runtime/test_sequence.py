"""Any cut into calls, and several sequences, against the same recurrence in numpy."""

import gc
import itertools
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxc import runtime
from mxc.artifact.manifest import PageRecord, TensorType
from mxc.errors import ArtifactError, RequestError
from mxc.runtime import arrays, load
from mxc.runtime.session import Model

TOKENS = [3, 5, 0, 6, 1, 2, 2, 4, 6, 6, 0, 1, 5, 3, 1, 2]


def expected(tokens: list[int]) -> np.ndarray:
    """tests/runtime/toy.mlir in numpy: float32 [n, 7]."""
    values = np.array(tokens, np.float32) + 1
    j = np.arange(len(tokens), dtype=np.float32)
    hidden = np.stack([np.cumsum(values * (j + 1 + h)) for h in (0, 1)], axis=1)
    return hidden[:, :1] + hidden[:, 1:] * np.arange(7, dtype=np.float32)


@pytest.fixture
def model(toy_artifact: Path) -> Model:
    return load(toy_artifact)


@pytest.mark.parametrize("count", range(1, 17))
def test_one_feed(model: Model, count: int) -> None:
    want = expected(TOKENS[:count])
    seq = model.sequence()
    np.testing.assert_array_equal(seq.feed(TOKENS[:count]), want)
    assert seq.position == count
    assert seq.remaining == 16 - count
    np.testing.assert_array_equal(model.sequence().feed(TOKENS[:count], last_only=True), want[-1:])


@pytest.mark.parametrize("cuts", [(1, 2), (3, 8), (4, 12), (5, 6), (7, 15), (2, 13)])
def test_any_cut_gives_the_same(model: Model, cuts: tuple[int, int]) -> None:
    seq = model.sequence()
    parts = [TOKENS[a:b] for a, b in itertools.pairwise((0, *cuts, 16))]
    got = np.concatenate([seq.feed(part) for part in parts])
    np.testing.assert_array_equal(got, expected(TOKENS))


@pytest.mark.parametrize(
    ("last_only", "calls"), [(True, [(4, 0), (4, 0), (2, 1)]), (False, [(4, 4), (4, 4), (2, 2)])]
)
def test_rows_and_logits_of_the_calls(
    model: Model, monkeypatch: pytest.MonkeyPatch, last_only: bool, calls: list[tuple[int, int]]
) -> None:
    """The artifact takes four rows a call; logits that nobody wants are not computed."""
    seen = []
    invoke = model.invoke

    def traced(name: str, arguments: list[Any]) -> list[Any]:
        seen.append((arguments[0].shape[0], arguments[3].shape[0]))
        return invoke(name, arguments)

    monkeypatch.setattr(model, "invoke", traced)
    model.sequence().feed(TOKENS[:10], last_only=last_only)
    assert seen == calls


def test_sequences_of_one_model_do_not_touch(model: Model) -> None:
    first, second = model.sequence(), model.sequence()
    other = TOKENS[::-1]
    for i in range(0, 15, 3):
        a, b = first.feed(TOKENS[i : i + 3]), second.feed(other[i : i + 3])
        np.testing.assert_array_equal(a, expected(TOKENS)[i : i + 3])
        np.testing.assert_array_equal(b, expected(other)[i : i + 3])


def test_fork_and_reset(model: Model) -> None:
    seq = model.sequence()
    seq.feed(TOKENS[:6])
    twin = seq.fork()
    np.testing.assert_array_equal(seq.feed([6, 6]), expected([*TOKENS[:6], 6, 6])[6:])
    np.testing.assert_array_equal(twin.feed(TOKENS[6:9]), expected(TOKENS)[6:9])
    np.testing.assert_array_equal(seq.feed([5]), expected([*TOKENS[:6], 6, 6, 5])[8:])
    seq.reset()
    assert seq.position == 0
    np.testing.assert_array_equal(seq.feed(TOKENS[:5]), expected(TOKENS[:5]))
    np.testing.assert_array_equal(twin.feed(TOKENS[9:12]), expected(TOKENS)[9:12])


def test_pages_and_states_can_be_read(model: Model, memory_artifact: Path) -> None:
    seq = model.sequence()
    seq.feed(TOKENS[:6])
    assert seq.pages().shape == (2, 1, 4, 1, 1)
    np.testing.assert_array_equal(seq.pages().ravel()[:6], np.array(TOKENS[:6], np.float32))
    assert seq.states() == {}
    other = load(memory_artifact).sequence()
    other.feed(TOKENS[:14])
    assert other.pages(0).shape == (4, 1, 4, 1, 1)
    # A token at 14 sees those from 9: the pages of positions 8 to 15.
    assert other.pages(1).shape == (2, 1, 4, 2, 3)
    np.testing.assert_array_equal(other.pages(1)[0, 0, :, 1, 2], np.array(TOKENS[8:12], np.float32))
    squares = sum((token + 1) ** 2 for token in TOKENS[:14])
    np.testing.assert_array_equal(other.states()["squares"], np.array([[squares]], np.float32))


def test_results_belong_to_the_caller(model: Model) -> None:
    seq = model.sequence()
    first = seq.feed(TOKENS[:1])
    seq.feed(TOKENS[1:9])
    np.testing.assert_array_equal(first, expected(TOKENS[:1]))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "at least one token"),
        (
            [1, 7],
            r"token 7 \(number 1 of those fed\) is outside of the vocabulary, which is 0 to 6",
        ),
        ([-1], "token -1 .* outside of the vocabulary"),
        ([1, 2**70], r"token 1180591620717411303424 \(number 1 .* outside of the vocabulary"),
        ([1.5], "wants a sequence of token ids, got float64"),
        ([0] * 15, r"would be 17 tokens long, the artifact holds 16; .*--max-sequence-length"),
    ],
)
def test_refused_tokens_change_nothing(model: Model, tokens: list[int], message: str) -> None:
    seq = model.sequence()
    seq.feed(TOKENS[:2])
    with pytest.raises(RequestError, match=message):
        seq.feed(tokens)
    assert seq.position == 2
    np.testing.assert_array_equal(seq.feed(TOKENS[2:16]), expected(TOKENS)[2:])


def test_not_a_language_model(plain_artifact: Path) -> None:
    with pytest.raises(RequestError, match="not a language model: it has no sequences; call its"):
        load(plain_artifact).sequence()


@pytest.mark.parametrize("lazily", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_zeros_of_both_kinds(model: Model, lazily: bool, dtype: str) -> None:
    """Pools of GPUs are filled on the device; the CPU device can do that too."""
    wanted = TensorType(shape=(3, 1025), dtype=dtype)
    for _ in range(3):  # memory that was used before comes back
        view, _memory = arrays.zeros(model.device, wanted, lazily=lazily)
        got = arrays.to_host(model.device, view, dtype)
        assert got.shape == (3, 1025)
        assert not got.astype(np.float32).any()
        arrays.to_device(model.device, np.full(3 * 1025, 7, np.float32), "f32")


def test_pools_live_as_long_as_a_sequence(model: Model) -> None:
    """IREE frees them with the first buffer's Python object; later ones are made in place."""
    seq = model.sequence()
    seq.feed(TOKENS[:1])
    gc.collect()
    rubbish = [np.full(5 * 16 + 64, 7, np.uint8) for _ in range(200)]
    np.testing.assert_array_equal(seq.feed(TOKENS[1:3]), expected(TOKENS)[1:3])
    del rubbish


def test_no_name_of_the_package_is_one_of_its_modules() -> None:
    """Such a name would be the module once that is imported, whatever it was before."""
    modules = {module.name for module in pkgutil.iter_modules(runtime.__path__)}
    assert modules.isdisjoint(runtime.__all__)
    assert runtime.load is load


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 9}, "vocab_size 9 is not that of step"),
        (
            {"pages": (PageRecord(window=None, shape=(2, 4, 1, 1), dtype="f32"),)},
            "model and function step disagree",
        ),
        ({"states": {"s": TensorType(shape=(1,), dtype="f32")}}, "function step disagree"),
    ],
)
def test_a_model_that_its_function_is_not_is_refused(
    toy_artifact: Path, rewrite: Callable[..., None], fields: dict[str, Any], said: str
) -> None:
    manifest = load(toy_artifact).manifest
    assert manifest.model is not None
    rewrite(toy_artifact, model=replace(manifest.model, **fields))
    with pytest.raises(ArtifactError, match=said):
        load(toy_artifact)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rows": 0}, "model.rows: wants at least 1"),
        ({"pages": ()}, "model.pages: wants at least one kind"),
        ({"page_size": 8}, r"model.pages\[0\].shape: wants \[entries, 8, heads, elements\]"),
        (
            {"pages": (PageRecord(window=0, shape=(1, 4, 1, 1), dtype="f32"),)},
            r"pages\[0\].window: wants at least 1",
        ),
        (
            {"pages": (PageRecord(window=None, shape=(1, 4, 1, 1), dtype="f32", format="mxint8"),)},
            r"pages\[0\].format: wants mxint8 or mxfp8e4m3 or fp8e4m3 in i8, found mxint8 in f32",
        ),
        (
            {"pages": (PageRecord(window=None, shape=(1, 4, 1, 1), dtype="i8", format="mxint8"),)},
            r"pages\[0\].shape: wants positions and elements in multiples of 32",
        ),
    ],
)
def test_pages_that_cannot_be_are_refused(
    toy_artifact: Path, rewrite: Callable[..., None], fields: dict[str, Any], said: str
) -> None:
    manifest = load(toy_artifact).manifest
    assert manifest.model is not None
    rewrite(toy_artifact, model=replace(manifest.model, **fields))
    with pytest.raises(ArtifactError, match=said):
        load(toy_artifact)
