"""A convolutional network for texts (Kim 2014; Zhang and Wallace 2015)."""

from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.errors import DataError, SettingError, check
from fedstrata.models.answers import Answers, fits
from fedstrata.models.base import Network, Shape

WIDTHS = 3, 4, 5
"""How many words a filter sees."""


def textcnn(
    shape: Shape,
    classes: int,
    vocabulary: int | None = None,
    dim: int = 128,
    filters: int = 100,
    dropout: float = 0.5,
) -> nn.Module:
    """Word embeddings, filters over 3, 4 and 5 words, the largest answer of each; for texts as token ids, 0 padding."""
    if vocabulary is None:
        raise SettingError("textcnn needs the number of token ids, len(vocabulary): write e.g. vocabulary=20000")
    for name, size in {"vocabulary": vocabulary, "dim": dim, "filters": filters}.items():
        check(size >= 1, f"textcnn.{name} must be at least 1; got {size}")
    check(0 <= dropout < 1, f"textcnn.dropout must be in [0, 1); got {dropout}")
    if len(shape) != 1 or shape[0] < max(WIDTHS):
        need = f"texts of {max(WIDTHS)} token ids or more, shape (length,)"
        raise DataError(f"textcnn needs {need}; the examples have shape {shape}")
    layers = nn.Embedding(vocabulary, dim, padding_idx=0), LargestAnswers(dim, filters), nn.Dropout(dropout)
    return Network(Reader(*layers), filters * len(WIDTHS), classes)


class LargestAnswers(nn.Module):
    """What each filter answers where it answers most, [B, T, dim] -> [B, widths * filters]."""

    def __init__(self, dim: int, filters: int):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(dim, filters, width) for width in WIDTHS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, widths * filters]."""
        x = x.transpose(1, 2)
        return torch.cat([f(x).relu().amax(-1) for f in self.filters], 1)


class Reader(nn.Sequential):
    """Embedding, largest answers, dropout: [B, T] -> [B, widths * filters]; the first two at once where that can be."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, T] -> [B, widths * filters]."""
        layers: list[Any] = list(self)
        if len(layers) != 3 or not fits(input, *layers[:2]):
            return super().forward(input)
        embedding, answers, dropout = layers
        weights, biases = zip(*((f.weight, f.bias) for f in answers.filters), strict=True)
        best = Answers.apply(input, embedding.padding_idx, embedding.weight, *weights)
        return dropout((best + torch.cat(biases)).relu())
