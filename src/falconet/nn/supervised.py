"""Any network of (X, y) as a model for the trainer, and layers that do not learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from falconet.arguments import explained
from falconet.batch import Batch, feature_of, target_of
from falconet.errors import ConfigError

M = TypeVar("M", bound=nn.Module)


class Supervised(nn.Module):
    """A network that maps the feature `x` to a prediction, and a loss between it and the target `y`.

    `loss` gives one number per row, as torch's losses do with `reduction="none"`; where it gives several, as for a
    target of several numbers, their mean counts. The trainer averages over the rows of all processes. Weights keep the
    names they have in the network.
    """

    @explained
    def __init__(
        self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *, x: str = "x", y: str = "y"
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"Supervised was given {module!r} as a network", hint="a torch.nn.Module")
        if not callable(loss):
            raise ConfigError(
                f"Supervised was given {loss!r} as a loss", hint='such as torch.nn.MSELoss(reduction="none")'
            )
        reduction = getattr(loss, "reduction", "none")
        if reduction != "none":
            raise ConfigError(
                f"{type(loss).__name__} has reduction={reduction!r}, which is over the rows of one process alone",
                hint='reduction="none"; the trainer averages over the rows of all',
            )
        self.module = module
        self.x, self.y, self._loss = x, y, loss

    def forward(self, batch: Batch) -> Tensor:
        """The network's predictions: [rows, ...]."""
        prediction: Tensor = self.module(feature_of(batch, self.x))
        return prediction

    def loss(self, batch: Batch) -> Tensor:
        """One loss per row: [rows]."""
        prediction, y = self(batch), target_of(batch, self.y)
        losses = self._compare(prediction, y)
        if losses.numel() > prediction.numel():
            raise ConfigError(
                f"predictions {tuple(prediction.shape)} and targets {tuple(y.shape)} gave losses "
                f"{tuple(losses.shape)}: each row was compared with every other",
                hint="predictions and targets of one shape",
            )
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses

    def _compare(self, prediction: Tensor, y: Tensor) -> Tensor:
        """The losses, as the given loss has them; where it cannot, and types or shapes differ, says so in our words."""
        try:
            return self._loss(prediction, y)
        except (RuntimeError, ValueError) as error:
            alike = (prediction.shape, prediction.dtype) == (y.shape, y.dtype)
            if alike or isinstance(error, torch.OutOfMemoryError):
                raise
            name = getattr(self._loss, "__name__", type(self._loss).__name__)
            raise ConfigError(
                f"{name} cannot compare predictions {_kind(prediction)} with targets `{self.y}` {_kind(y)}: "
                f"{str(error).splitlines()[0]}",
                hint="binary and squared losses need targets of floats in the predictions' shape, as `y.float()` in "
                "the data set; CrossEntropyLoss needs class numbers, int64 of [rows]",
            ) from error


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"


def freeze(module: M) -> M:
    """The module, no longer learning: no gradients, and never in training mode, so BatchNorm and Dropout rest too.

    Raises ConfigError for what is no module, such as the name of a part or of a table.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"freeze was given {module!r}",
            hint="a torch.nn.Module, such as model.backbone; a table by its name: fl.nn.freeze_tables(model, name)",
        )
    module.requires_grad_(False)
    module.eval()
    for inner in module.modules():
        inner.train = partial(_stay, inner)  # type: ignore[method-assign]
    return module


def is_frozen(module: nn.Module) -> bool:
    """Whether `freeze` was called on the module, or on one around it."""
    return "train" in vars(module)


def _stay(module: M, mode: bool = True) -> M:
    return module
