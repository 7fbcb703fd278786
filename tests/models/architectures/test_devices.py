"""Models on several devices, against transformers: what each block has of heads and widths."""

from collections.abc import Callable

import pytest

from mxc.artifact.manifest import REPORT, WEIGHTS, read_json
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.report import Reports
from mxc.runtime.profile import profile_model
from tests.models.architectures.cases import DEVICES
from tests.models.compared import Built

Builds = Callable[[str, int], Built]

each = pytest.mark.parametrize(("name", "devices"), DEVICES.items())


@each
def test_logits(name: str, devices: int, built: Builds) -> None:
    """Token by token and in one call; what is generated is what they choose."""
    found = built(name, devices)
    found.check_generated()
    found.check(found.model.sequence().feed(found.tokens))


@each
def test_decoded_together(name: str, devices: int, built: Builds) -> None:
    found, starts = built(name, devices), [3, 20]
    sequences = [found.model.sequence() for _ in starts]
    for sequence, start in zip(sequences, starts, strict=True):
        found.check(sequence.feed(found.tokens[:start]), slice(0, start))
    rows = found.model.batch().feed(sequences, [found.tokens[start] for start in starts])
    found.check(rows, starts)


@pytest.mark.parametrize(("name", "devices"), [("qwen3_next", 2)])
def test_states_are_of_the_heads_of_each_device(name: str, devices: int, built: Builds) -> None:
    sequence = built(name, devices).model.sequence()
    sequence.feed([1, 2, 3])
    states = {key: state.shape for key, state in sequence.states().items()}
    # One layer, three tokens before the next; two heads of keys and four of values, of 16 and 32.
    assert states == {
        f"device.{device}.{name}": shape
        for device in range(2)
        for name, shape in (("convolution", (1, 3, 16 + 16 + 64)), ("delta_rule", (1, 2, 16, 32)))
    }
    assert built(name, devices).model.manifest.model.bytes_per_sequence == 2 * 4 * (288 + 1024)


@pytest.mark.parametrize(("name", "devices"), [("gpt_oss", 2)])
def test_each_device_has_a_profile(name: str, devices: int, built: Builds) -> None:
    """Each adds up to the wall time of the call, and has as many kernels as the report says."""
    model = built(name, devices).model
    report = read_json((model.path / REPORT).read_text(), REPORT)
    products = [one["kernel"] for one in report["operations"] if "qkv_proj" in one["name"]]
    profiles = profile_model(model, [1, 2, 3])
    assert [(one.device, one.position, one.tokens) for one in profiles] == [
        (0, 0, 3),
        (1, 0, 3),
        (0, 3, 1),
        (1, 3, 1),
    ]
    for one in profiles:
        rows = {row.name: row for row in one.operations}
        own = rows["model.layers.*.self_attn.qkv_proj"]
        assert own.calls == len(products) // devices
        assert not any(name.startswith("device") for name in rows)
        apart = one.between_operations + one.around_operations
        total = sum(row.milliseconds for row in one.operations) + apart
        assert total == pytest.approx(one.milliseconds)


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
