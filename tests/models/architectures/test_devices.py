"""Models on several devices, against transformers: what each block has of heads and widths."""

from collections.abc import Callable

import pytest
from built import PROMPT, Built

from mxc.artifact.manifest import REPORT, WEIGHTS, read_json
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.report import Reports

#: A case, and how many devices compute it.
DEVICES = {
    # Attention and MLP side by side; the head is the embedding, the first layer slides.
    "cohere2": 4,
    # All heads share one row a token, which is on both devices.
    "deepseek_v3": 2,
    # Biases everywhere, experts, sinks.
    "gpt_oss": 2,
    # q_proj, k_proj and v_proj are one tensor, gate_proj and up_proj another one.
    "phi3": 2,
    # An expert that all tokens go through, with a gate of its own.
    "qwen2_moe": 2,
}

Builds = Callable[[str, int], Built]

each = pytest.mark.parametrize(("name", "devices"), DEVICES.items())


@each
def test_logits(name: str, devices: int, built: Builds) -> None:
    """Token by token and in one call; what is generated is what they choose."""
    found = built(name, devices)
    tokens, rows = found.generated
    found.check(rows)
    found.check(found.model.sequence().feed(tokens))
    assert found.wanted.argmax(-1)[PROMPT - 1 : -1].tolist() == tokens[PROMPT:]


@each
def test_decoded_together(name: str, devices: int, built: Builds) -> None:
    found, starts = built(name, devices), [3, 20]
    sequences = [found.model.sequence() for _ in starts]
    for sequence, start in zip(sequences, starts, strict=True):
        found.check(sequence.feed(found.tokens[:start]), slice(0, start))
    rows = found.model.batch().feed(sequences, [found.tokens[start] for start in starts])
    found.check(rows, starts)


@each
def test_each_has_its_share_of_the_weights(name: str, devices: int, built: Builds) -> None:
    model = built(name, devices).model
    file = model.path / REPORT
    reports = Reports.from_dict(read_json(file.read_text(), str(file)), str(file))
    assert len(reports.devices) == devices == model.manifest.model.devices
    own = [each.bytes - each.on_every_device for each in reports.devices]
    # Biases of sums are on the first device.
    assert max(own) <= 1.05 * min(own)
    entries = read_archive(model.path / WEIGHTS).values()
    assert sum(entry.bytes for entry in entries) == sum(each.bytes for each in reports.devices)
