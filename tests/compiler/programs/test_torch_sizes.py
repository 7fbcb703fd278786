"""Programs from torch with several sizes that come with the call: the numbers are torch's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

import mxc
from mxc.runtime.session import Model

X = torch.randint(-4, 5, (2, 7, 64), generator=torch.Generator().manual_seed(0)).float()
SIZES = {0: Dim("a", min=2, max=64), 1: Dim("m", min=2, max=64)}
WEIGHT = torch.arange(64 * 64).reshape(4, 64, 16).remainder(7).float() - 3


class Merged(nn.Module):
    """The importer makes t rows of it."""

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        heads = x.view(b, t, 4, 16).transpose(1, 2)
        return heads.permute(2, 0, 1, 3).contiguous().view(t * b, d)


class Einsum(nn.Module):
    """The importer makes a product of it that ends in an assertion."""

    def forward(self, x: Any) -> Any:
        return torch.einsum("btd,hdk->bhtk", x, WEIGHT)


class Regrouped(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(x.shape[1], x.shape[0], 64) + x.reshape(-1, 64).sum()


class Split(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.view(*x.shape[:2], 8, 8).sum(-1).reshape(x.shape[0], -1)


class Heads(nn.Module):
    """The size that -1 stands for is known, as that of heads is in transformers' models."""

    def forward(self, x: Any) -> Any:
        return x.view(*x.shape[:-1], -1, 16).transpose(1, 2).amax(-1)


class Chosen(nn.Module):
    """A row of each batch, as classifiers of sequences choose the last token; -1 is the last."""

    def forward(self, x: Any) -> Any:
        ids = x[:, :, 0].argmax(1)
        both = torch.stack([ids, torch.full_like(ids, -1)], 1)
        return (
            x[torch.arange(x.shape[0])[:, None], both] + x[torch.arange(x.shape[0]), ids][:, None]
        )


class Extremes(nn.Module):
    """Sizes that are the largest, the least and the sum of others."""

    def forward(self, x: Any) -> Any:
        batch, rows, _ = x.shape
        most, least = torch.sym_max(batch, rows), torch.sym_min(batch, rows)
        both = torch.sym_sum([batch, rows, 3])
        return x[:least, :, :1] + torch.arange(most)[None, None] + torch.full((both,), 2.0).sum()


class Patches(nn.Module):
    """A convolution whose padding is a word, which is one number for both dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.valid = nn.Conv2d(1, 4, 4, stride=4, padding="valid")

    def forward(self, x: Any) -> Any:
        return self.valid(x.reshape(-1, 1, 8, 8)).flatten(2).transpose(1, 2)


class Shifted(nn.Module):
    """Rows moved by one, as in RWKV: padded by a negative number, which keeps the size."""

    def forward(self, x: Any) -> Any:
        pad = nn.functional.pad
        return pad(x, (0, 0, 1, -1)) + 2 * pad(x, (-2, 2, -1, 1), value=3.0)


class Held(nn.Module):
    """Buffers of truth values, as a causal mask is, and of bytes."""

    mask: torch.Tensor
    few: torch.Tensor
    bytes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(65, 65).tril().bool())
        self.register_buffer("few", torch.tensor([True, False, True, True]))
        self.register_buffer("bytes", torch.tensor([0, 127, 128, 255], dtype=torch.uint8))

    def forward(self, x: Any) -> Any:
        rows = x.shape[1]
        scores = torch.where(self.mask[:rows, :rows], x @ x.mT, -1e4)
        return scores.softmax(-1) @ (x[..., :4] * self.few + self.bytes)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)


class OnImages(nn.Module):
    """What the importer lowers for known sizes alone; each row of x is an image of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.instance = nn.BatchNorm2d(1), nn.InstanceNorm2d(1)
        assert self.batch.running_mean is not None
        assert self.batch.running_var is not None
        self.batch.running_mean.fill_(0.5)
        self.batch.running_var.fill_(2.0)

    def forward(self, x: Any) -> Any:
        images = x.flatten(0, 1).view(x.shape[0] * x.shape[1], 1, 8, 8)
        images = self.batch(images) + self.instance(images)
        large = nn.functional.interpolate(images, scale_factor=2, mode="bilinear")
        return nn.functional.adaptive_avg_pool2d(large, (4, 4))


CASES = {
    "on_images": OnImages(),
    "merged": Merged(),
    "einsum": Einsum(),
    "regrouped": Regrouped(),
    "split": Split(),
    "heads": Heads(),
    "chosen": Chosen(),
    "encoder": encoder(),
    "extremes": Extremes(),
    "patches": Patches(),
    "held": Held(),
    "shifted": Shifted(),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    programs = {
        name: export(module.eval(), (X,), dynamic_shapes=(SIZES,), strict=False)
        for name, module in CASES.items()
    }
    folder: Path = tmp_path_factory.mktemp("programs")
    return mxc.load(mxc.compile(programs, output=folder / "all.mxc", listing=False).path)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [7, 3])
def test_numbers(name: str, rows: int, model: Model) -> None:
    x = X[:, :rows]
    with torch.no_grad():
        wanted = CASES[name](x).numpy()
    (found,) = model.call(name, np.ascontiguousarray(x.numpy()))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def test_images_of_known_sizes(tmp_path: Path) -> None:
    module = OnImages().eval()
    made = mxc.compile(export(module, (X,)), output=tmp_path / "out.mxc", listing=False)
    with torch.no_grad():
        wanted = module(X).numpy()
    (found,) = mxc.load(made.path).call("main", X.numpy())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)
