"""Modules of torch with packed weights that they decode themselves: name -> class. Each takes rows
of K elements."""

from collections.abc import Callable

import torch

N, K = 64, 128
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


class Lookup(torch.nn.Module):
    """mxfp4 as transformers dequantizes it: a lookup of nibbles, and ldexp."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("blocks", torch.randint(0, 256, (N, K // 32, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.randint(120, 130, (N, K // 32), dtype=torch.uint8))
        self.register_buffer("table", torch.tensor(FP4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.table[(self.blocks & 15).to(torch.int64)]
        high = self.table[(self.blocks >> 4).to(torch.int64)]
        weight = torch.stack([low, high], -1).flatten(-2)
        exponents = self.scales.to(torch.int32).unsqueeze(-1) - 127
        return x @ torch.ldexp(weight, exponents).flatten(1).T


class Narrow(Lookup):
    """The same with a constant table of bf16, by numbers of 32 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor(FP4, dtype=torch.bfloat16)
        low = table[(self.blocks & 15).to(torch.int32)]
        high = table[(self.blocks >> 4).to(torch.int32)]
        weight = torch.stack([low, high], -1).flatten(-2).float()
        exponents = self.scales.to(torch.int32).unsqueeze(-1) - 127
        return x @ torch.ldexp(weight, exponents).flatten(1).T


class Batched(torch.nn.Module):
    """Weights of two products at once: not the rows that a constant of three dimensions has."""

    def __init__(self) -> None:
        super().__init__()
        shape = (2, 24, K // 32)
        self.register_buffer("blocks", torch.randint(0, 256, (*shape, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.randint(120, 130, shape, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor(FP4)
        parts = [table[(self.blocks & 15).long()], table[(self.blocks >> 4).long()]]
        exponents = self.scales.to(torch.int32).unsqueeze(-1) - 127
        weight = torch.ldexp(torch.stack(parts, -1).flatten(-2), exponents).flatten(2)
        return torch.bmm(x.expand(2, -1, -1), weight.transpose(1, 2))


class Einsum(Lookup):
    """The same by blocks, as an einsum, which torch computes with a dimension of size 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.table[(self.blocks & 15).long()], self.table[(self.blocks >> 4).long()]]
        exponents = self.scales.to(torch.int32).unsqueeze(-1) - 127
        weight = torch.ldexp(torch.stack(parts, -1).flatten(-2), exponents)
        return torch.einsum("bgk,ngk->bn", x.unflatten(1, (-1, 32)), weight)


class Experts(Batched):
    """The experts of gpt-oss as transformers decodes them, each with all rows."""

    def decoded(self) -> torch.Tensor:
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        found: torch.Tensor = convert_moe_packed_tensors(
            self.blocks, self.scales, dtype=torch.float32
        )
        return found  # [experts, K, N]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.expand(2, -1, -1), self.decoded())


class Chosen(Experts):
    """One expert for each row, by a number of 64 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bk,bkn->bn", x, self.decoded()[(x[:, 0] > 0).long()])


class Slices(Lookup):
    """mxfp4 as AMD Quark dequantizes it: slices that are assigned, and shifts into the bits of a
    float, which are a subnormal number for 0.5."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = self.blocks.flatten(1)
        codes = torch.zeros(N, K, dtype=torch.uint8)
        codes[:, 1::2] = (blocks >> 4) & 15
        codes[:, ::2] = blocks & 15
        wide = codes.to(torch.int32)
        weight = (((wide & 7) << 22) | ((wide & 8) << 28)).view(torch.float32) * 2.0**126
        scales = 2.0 ** (self.scales.to(torch.float32) - 127)
        return x @ (weight.unflatten(1, (-1, 32)) * scales.unsqueeze(-1)).flatten(1).T


class Float8(torch.nn.Module):
    """Elements and scales of the dtypes of torch, of rows that come with the call."""

    def __init__(self) -> None:
        super().__init__()
        scales = torch.randint(120, 130, (N, K // 32), dtype=torch.uint8)
        self.register_buffer("weight", torch.randn(N, K).to(torch.float8_e4m3fn))
        self.register_buffer("scales", scales.view(torch.float8_e8m0fnu))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = self.weight.to(torch.float32).unflatten(1, (-1, 32))
        return x @ (blocks * self.scales.to(torch.float32).unsqueeze(-1)).flatten(1).T


class Bytes(torch.nn.Module):
    """Floats up to 255 as bytes without sign, and back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.abs() * 99).clamp(0, 255).to(torch.uint8).float()


class Seen(torch.nn.Module):
    """Truth values that are added up at places that repeat."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.tensor([0, 2, 2, 3, 3, 3])
        seen = torch.zeros(4, dtype=torch.bool)
        return seen.index_put((places,), x[0, :6] > 0, accumulate=True).float()


class Gelu(torch.nn.Module):
    """By tanh, in f32 and f16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = torch.nn.functional.gelu(x, approximate="tanh")
        return exact + torch.nn.functional.gelu(x.to(torch.float16), approximate="tanh").float()


OWN: dict[str, Callable[[], torch.nn.Module]] = {
    "lookup": Lookup,
    "narrow": Narrow,
    "batched": Batched,
    "einsum": Einsum,
    "experts": Experts,
    "chosen": Chosen,
    "slices": Slices,
    "float8": Float8,
    "bytes": Bytes,
    "seen": Seen,
    "gelu": Gelu,
}
