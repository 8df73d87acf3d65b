"""The models, each made for the shape of an example and a number of classes."""

from fedstrata.models.zoo import MODELS, model

__all__ = ["MODELS", "model"]
