"""The vision transformer (Dosovitskiy et al. 2021).

Attention is written out: torch's fused one has no rule for clients stacked by vmap.
"""

import torch
from torch import Tensor, nn

from fedstrata.errors import DataError, check
from fedstrata.models.base import Shape, image


def vit(
    shape: Shape,
    classes: int,
    patch: int = 4,
    dim: int = 512,
    depth: int = 6,
    heads: int = 8,
    mlp: int = 512,
    dropout: float = 0.1,
) -> nn.Module:
    """A vision transformer with a class token, for patches of 4x4 pixels, as in FedLWS."""
    channels, height, width = image(shape)
    for name, size in {"patch": patch, "dim": dim, "depth": depth, "heads": heads, "mlp": mlp}.items():
        check(size >= 1, f"vit.{name} must be at least 1; got {size}")
    check(dim % heads == 0, f"vit.dim must be a multiple of heads; got dim = {dim} and heads = {heads}")
    check(0 <= dropout < 1, f"vit.dropout must be in [0, 1); got {dropout}")
    if height % patch or width % patch:
        raise DataError(f"vit needs images that patches of {patch} x {patch} pixels tile; the examples have {shape}")
    tokens = (height // patch) * (width // patch)
    blocks = [Block(dim, heads, mlp, dropout) for _ in range(depth)]
    return Transformer(patch, channels * patch * patch, tokens, nn.Sequential(*blocks), dim, dropout, classes)


class Transformer(nn.Module):
    """Patches to tokens, a class token before them, blocks; the class token is what is classified."""

    def __init__(self, patch: int, pixels: int, tokens: int, blocks: nn.Module, dim: int, dropout: float, classes: int):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(pixels, dim)
        self.token = nn.Parameter(torch.randn(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, tokens + 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = blocks
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [B, C]."""
        tokens = self.embed(patches(x, self.patch))  # [B, T, dim]
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        return self.classifier(self.norm(self.blocks(self.dropout(tokens))[:, 0]))


class Block(nn.Module):
    """Attention, then two layers on each token by itself; both are added to what they see, normalised."""

    def __init__(self, dim: int, heads: int, mlp: int, dropout: float):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads), nn.Dropout(dropout))
        self.think = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, mlp), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(mlp, dim), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]."""
        x = x + self.attend(x)
        return x + self.think(x)


class Attention(nn.Module):
    """Tokens look at each other: softmax(q k' / sqrt(d)) v in each head."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ask = nn.Linear(dim, 3 * dim, bias=False)
        self.tell = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]."""
        q, k, v = self.ask(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, heads, T, d] each
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)  # [B, heads, T, T]
        return self.tell((weights @ v).transpose(1, 2).flatten(2))


def patches(x: Tensor, size: int) -> Tensor:
    """Cut images into squares, row by row: [B, C, H, W] -> [B, T, C * size * size]."""
    grid = x.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # [B, C, H / size, size, W / size, size]
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
