"""Chunks, padding, decode steps and several sequences against the same recurrence in numpy."""

import gc
import itertools
import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mxc import runtime
from mxc.artifact.manifest import Function, Manifest, ModelRecord, TargetRecord, TensorType
from mxc.errors import ArtifactError, RequestError
from mxc.runtime import arrays, load
from mxc.runtime.generation import generate
from mxc.runtime.integrity import check_model
from mxc.runtime.sampling import Sampler
from mxc.runtime.sequence import decoded_tail
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


@pytest.fixture
def calls(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that are called, in order."""
    names: list[str] = []
    invoke = model.invoke

    def traced(name: str, arguments: list[object]) -> list[object]:
        names.append(name)
        return invoke(name, arguments)

    monkeypatch.setattr(model, "invoke", traced)
    return names


@pytest.mark.parametrize("tail", [0, 1, 4])
@pytest.mark.parametrize("count", range(1, 17))
def test_one_feed(model: Model, monkeypatch, tail: int, count: int) -> None:
    """tail 0: the remainder is a padded chunk; 4: it is decoded, whatever its length."""
    monkeypatch.setattr("mxc.runtime.sequence.decoded_tail", lambda chunk, on_cpu: tail)
    want = expected(TOKENS[:count])
    seq = model.sequence()
    np.testing.assert_array_equal(seq.feed(TOKENS[:count]), want)
    assert seq.position == count
    assert seq.room == 16 - count
    np.testing.assert_array_equal(model.sequence().feed(TOKENS[:count], last_only=True), want[-1:])


@pytest.mark.parametrize("tail", [0, 1, 4])
@pytest.mark.parametrize("cuts", [(1, 2), (3, 8), (4, 12), (5, 6), (7, 15), (2, 13)])
def test_any_cut_gives_the_same(model: Model, monkeypatch, tail: int, cuts) -> None:
    """What padding left behind a short chunk is overwritten by the next one."""
    monkeypatch.setattr("mxc.runtime.sequence.decoded_tail", lambda chunk, on_cpu: tail)
    seq = model.sequence()
    parts = [TOKENS[a:b] for a, b in itertools.pairwise((0, *cuts, 16))]
    got = np.concatenate([seq.feed(part) for part in parts])
    np.testing.assert_array_equal(got, expected(TOKENS))


def test_which_functions_are_called(model: Model, calls: list[str], monkeypatch) -> None:
    monkeypatch.setattr("mxc.runtime.sequence.decoded_tail", lambda chunk, on_cpu: 2)
    model.sequence().feed(TOKENS[:10], last_only=True)
    assert calls == ["prefill", "prefill", "decode", "decode"]
    calls.clear()
    model.sequence().feed(TOKENS[:11], last_only=True)
    assert calls == ["prefill", "prefill", "prefill", "logits_row"]
    calls.clear()
    model.sequence().feed(TOKENS[:8])
    assert calls == ["prefill", "logits"] * 2
    calls.clear()
    model.sequence().feed(TOKENS[:8], last_only=True)
    assert calls == ["prefill", "prefill", "logits_row"]


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


def test_reset_forgets_the_cache(model: Model) -> None:
    """NaN of an earlier sequence, behind the mask of a later one, would be NaN times zero."""
    from iree import runtime as rt

    seq = model.sequence()
    seq.feed(TOKENS[:6])
    seq.reset()
    cache = rt.DeviceArray(model.device, seq.cache).to_host()
    np.testing.assert_array_equal(cache, np.zeros_like(cache))


def test_a_short_remainder_is_decoded() -> None:
    assert [decoded_tail(128, True), decoded_tail(128, False)] == [12, 8]
    assert [decoded_tail(1, True), decoded_tail(4, True), decoded_tail(16, False)] == [0, 0, 4]


def test_cache_stays_in_place(model: Model) -> None:
    """The program updates the buffer that it was given: no copy of the cache is made."""
    seq = model.sequence()
    from iree import runtime as rt

    memory = rt.DeviceArray(model.device, seq.cache).to_host()
    seq.feed(TOKENS[:6])
    seq.feed(TOKENS[6:7])
    np.testing.assert_array_equal(memory[:7], np.float32(TOKENS[:7]))


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


def test_generate(model: Model) -> None:
    # logits grow with the token id here, so the greedy choice is always 6.
    greedy = Sampler()
    assert list(generate(model, [1, 2, 3], greedy, max_new_tokens=5)) == [6] * 5
    assert list(generate(model, [1, 2, 3], greedy, 5, stop=[6])) == [6]
    assert len(list(generate(model, [1, 2, 3], greedy))) == 16 - 3 + 1
    assert len(list(generate(model, [1] * 16, greedy))) == 1
    with pytest.raises(RequestError, match="3 tokens and 15 new ones is longer than the 16"):
        list(generate(model, [1, 2, 3], greedy, max_new_tokens=15))
    with pytest.raises(RequestError, match="a prompt of 17 tokens is longer than the 16"):
        list(generate(model, [1] * 17, greedy))
    with pytest.raises(RequestError, match="max-new-tokens must be at least 1, got 0"):
        list(generate(model, [1], greedy, max_new_tokens=0))


def test_generate_feeds_what_it_draws(model: Model, monkeypatch) -> None:
    seen: list[np.ndarray] = []
    script = iter([4, 1, 0])

    def sampler(logits: np.ndarray) -> int:
        seen.append(logits)
        return next(script)

    assert list(generate(model, [2, 5], sampler, 3)) == [4, 1, 0]
    np.testing.assert_array_equal(np.concatenate(seen), expected([2, 5, 4, 1])[1:])


@pytest.mark.parametrize("lazily", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_zeros_of_both_kinds(model: Model, lazily: bool, dtype: str) -> None:
    """GPU caches are filled on the device; the CPU device can do that too."""
    wanted = TensorType(shape=(3, 1025), dtype=dtype)
    for _ in range(3):  # memory that was used before comes back
        view, _memory = arrays.zeros(model.device, wanted, lazily=lazily)
        got = arrays.to_host(model.device, view, dtype)
        assert got.shape == (3, 1025)
        assert not got.astype(np.float32).any()
        arrays.to_device(model.device, np.full(3 * 1025, 7, np.float32), "f32")


def test_cache_memory_lives_as_long_as_the_sequence(model: Model) -> None:
    """IREE frees it with the first buffer's Python object, though later ones are made in place."""
    seq = model.sequence()
    seq.feed(TOKENS[:1])
    gc.collect()
    rubbish = [np.full(19 * 4 + 64, 7, np.uint8) for _ in range(200)]
    np.testing.assert_array_equal(seq.feed(TOKENS[1:3]), expected(TOKENS)[1:3])
    del rubbish


def test_no_name_of_the_package_is_one_of_its_modules() -> None:
    """Such a name would be the module once that is imported, whatever it was before."""
    modules = {module.name for module in pkgutil.iter_modules(runtime.__path__)}
    assert modules.isdisjoint(runtime.__all__)
    assert runtime.generate is generate


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prefill_chunk": 8}, "model and function prefill disagree"),
        ({"vocab_size": 9}, "vocab_size 9 is not that of decode"),
        ({"cache": TensorType(shape=(5,), dtype="f32")}, "prefill disagree"),
    ],
)
def test_a_model_that_its_functions_are_not_is_refused(toy_artifact, rewrite, fields, said) -> None:
    manifest = load(toy_artifact).manifest
    assert manifest.model is not None
    rewrite(toy_artifact, model=replace(manifest.model, **fields))
    with pytest.raises(ArtifactError, match=said):
        load(toy_artifact)


def test_a_sequence_that_the_cache_cannot_hold_is_refused() -> None:
    """What is fed behind the end of the cache would be written behind the end of a buffer."""
    cache = TensorType(shape=(4, 35, 2, 32), dtype="f32")
    number = TensorType(shape=(), dtype="i32")
    hidden = TensorType(shape=(4, 8), dtype="f32")

    def logits(rows: int) -> TensorType:
        return TensorType(shape=(rows, 7), dtype="f32")

    def function(tokens: int, first: TensorType) -> Function:
        ids = TensorType(shape=(tokens,), dtype="i32")
        return Function(inputs=(ids, number, cache), outputs=(first, cache))

    def manifest(longest: int) -> Manifest:
        return Manifest(
            mxc_version="",
            iree_version="",
            target=TargetRecord(name="", device="", architecture="", chip=""),
            activations="f32",
            functions={
                "prefill": function(4, hidden),
                "decode": function(1, logits(1)),
                "logits": Function(inputs=(hidden,), outputs=(logits(4),)),
                "logits_row": Function(inputs=(hidden, number), outputs=(logits(1),)),
            },
            files={},
            model=ModelRecord(
                architecture="toy",
                vocab_size=7,
                max_sequence_length=longest,
                prefill_chunk=4,
                cache=cache,
            ),
        )

    check_model(manifest(32), "a.mxc")
    with pytest.raises(ArtifactError, match=r"holds 35 positions, sequences need 36.*compile"):
        check_model(manifest(33), "a.mxc")
