"""Small gpt-oss models, compiled once a session, beside transformers' own model of each.

A test asks for a model by a `case`: a dict of

    options         GptOssOptions, what the checkpoint is
    length          max_sequence_length of the artifact
    activations     the mode, as --activations takes it
    quantize_dense  as --quantize-dense takes it, None where it is not given
    kv_cache        as --kv-cache takes it, None where it is not given
    devices         as --devices takes it, 1 where it is not given
    seed            of the weights, 0 where it is not given
"""

import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GptOssForCausalLM, Mxfp4Config

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.formats.reference import dequantize, quantize
from mxc.runtime import Model

# These are no tests by their names.
pytest.register_assert_rewrite("tests.models.compared", "tests.models.published_checks")


@dataclass(frozen=True)
class Compiled:
    """A checkpoint, its artifact, and what both compute."""

    checkpoint: Path
    artifact: Path
    vocabulary: int
    length: int
    quantize_dense: str | None = None

    @cached_property
    def model(self) -> Model:
        """The artifact, loaded."""
        return mxc.load(self.artifact)

    @cached_property
    def reference(self) -> GptOssForCausalLM:
        """transformers' model of the checkpoint: float32, plain attention, plain experts.

        Its dense weights are what `quantize_dense` makes of them.
        """
        model = GptOssForCausalLM.from_pretrained(
            self.checkpoint,
            quantization_config=Mxfp4Config(dequantize=True),
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        dense = self.quantize_dense
        for path, module in model.named_modules() if dense else ():
            if dense and (path.endswith("_proj") or path == "lm_head"):
                format = {"mxfp8": "mxfp8e4m3"}.get(dense, dense)
                q = quantize(module.weight.detach().numpy(), format, recipe="rceil")
                # A parameter of its own, where the head is the embedding too.
                module.weight = torch.nn.Parameter(torch.from_numpy(dequantize(q)))
        return model

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens that fill a sequence to its last position."""
        return self.draw(0)

    def draw(self, seed: int) -> list[int]:
        """As many tokens as a sequence holds, at random."""
        rng = np.random.default_rng(seed)
        return [int(token) for token in rng.integers(0, self.vocabulary, self.length)]

    @cached_property
    def wanted(self) -> NDArray[np.float64]:
        """The reference's logits [length, vocabulary] after each of `tokens`."""
        with torch.no_grad():
            logits = self.reference(torch.tensor([self.tokens]), use_cache=False).logits
        return logits[0].double().numpy()


def _compile(folder: Path, case: dict[str, Any]) -> Compiled:
    checkpoint, artifact = folder / "checkpoint", folder / "model.mxc"
    options = case["options"]
    write_gpt_oss(checkpoint, options, seed=case.get("seed", 0), tokenizer=False)
    mxc.compile(
        checkpoint,
        "cpu",
        artifact,
        activations=case["activations"],
        quantize_dense=case.get("quantize_dense"),
        kv_cache=case.get("kv_cache"),
        listing=case.get("listing", False),
        devices=case.get("devices", 1),
        max_sequence_length=case["length"],
    )
    return Compiled(
        checkpoint, artifact, options.vocab_size, case["length"], case.get("quantize_dense")
    )


@pytest.fixture(scope="module", autouse=True)
def _kept_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep compiled programs between runs, in .pytest_cache: these tests are about numbers.

    What a program is compiled by is in its key (compiler/cache.py).
    """
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(request.config, "cache"):  # not with -p no:cacheprovider
            patch.setenv("XDG_CACHE_HOME", str(request.config.cache.mkdir("models")))
        yield


#: The schedule with the smallest tiles, of each product: its results have the same bits as those of
#: others (tests/passes/kernels/test_schedules.py), and LLVM has a third of the code to compile.
SCHEDULES = [{"schedule": -1}]


@pytest.fixture(scope="module", autouse=True)
def _small_tiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile for CPUs with these schedules, unless a test chooses others."""
    file = tmp_path_factory.mktemp("schedules") / "schedules.json"
    file.write_text(json.dumps(SCHEDULES))
    compile_any = mxc.compile

    @functools.wraps(compile_any)
    def compile_small(source: Any, target: Any = "cpu", *rest: Any, **options: Any) -> Any:
        if isinstance(target, str) and target.startswith("cpu"):
            options.setdefault("schedule", file)
        return compile_any(source, target, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mxc, "compile", compile_small)
        yield


@pytest.fixture(scope="session")
def _submit(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[dict[str, Any]], Future[Compiled]]]:
    """Have the model of a case compiled, once. IREE compiles a small one mostly on one thread."""
    pool = ThreadPoolExecutor(max_workers=2)
    made: dict[str, Future[Compiled]] = {}

    def submit(case: dict[str, Any]) -> Future[Compiled]:
        key = repr(case)
        if key not in made:
            folder = tmp_path_factory.mktemp("model")
            made[key] = pool.submit(_compile, folder, case)
        return made[key]

    yield submit
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def compiled(
    request: pytest.FixtureRequest, _submit: Callable[[dict[str, Any]], Future[Compiled]]
) -> Callable[[dict[str, Any]], Compiled]:
    """The compiled model of a case. Two of a file are compiled at a time, ahead of its tests.

    What is compiled is what the selected tests of the file name in their parameter `case`.
    """
    for item in request.session.items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path == request.path and "case" in parameters:
            _submit(parameters["case"])
    return lambda case: _submit(case).result()
