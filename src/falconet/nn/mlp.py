"""The block most models end in: linear layers with activation, normalisation and dropout between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn

from falconet.errors import ConfigError
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.folded import is_foldable, is_plain, normalised_linear
from falconet.nn.relu import is_narrow, relu_

Activation = Literal["relu", "gelu", "tanh", "silu"]
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),  # what a linear layer gave is needed no more
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


class Layers(nn.Sequential):
    """Layers one after the other; a BatchNorm and what stands behind it is one step where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            layer, behind = layers.pop(0), layers[0] if layers else None
            if isinstance(layer, BatchNorm) and isinstance(behind, nn.Linear) and is_foldable(x, layer, behind):
                relu = len(layers) > 1 and isinstance(layers[1], nn.ReLU) and is_plain(layers[1])
                x = normalised_linear(x, layer, behind, relu=relu)
                del layers[: 1 + relu]
            elif isinstance(layer, nn.ReLU) and layer.inplace and is_plain(layer) and is_narrow(x):
                x = relu_(x)
            else:
                x = layer(x)
        return x


class MLP(nn.Module):
    """Linear, activation, BatchNorm, dropout for each of `hidden`, then a linear layer to `output` if one is given.

    [rows, inputs] -> [rows, width]. The order within a layer is that of NVTabular's torch model.

    `first` is the first linear layer and `rest` is everything after it, so that `Tables.project` can stand in for it:
    `mlp.rest(tables.project(batch, mlp.first))` equals `mlp(torch.cat([...], 1))`.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        output: int | None = None,
        *,
        dropout: float = 0.0,
        batch_norm: bool = True,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"activation must be one of {', '.join(_ACTIVATIONS)}, not {activation!r}")
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must be from 0 to below 1, not {dropout}")
        widths = [*hidden, *([] if output is None else [output])]
        if inputs < 1 or not widths or min(widths) < 1:
            raise ConfigError(f"an MLP of {inputs} inputs and layers of {widths} has nothing to compute")
        self.width = widths[-1]
        self.first = nn.Linear(inputs, widths[0])
        linear, layers = self.first, list[nn.Module]()
        for i, width in enumerate(hidden):
            if i:
                layers.append(linear := nn.Linear(hidden[i - 1], width))
            layers.append(_ACTIVATIONS[activation]())
            if batch_norm:
                layers.append(norm := BatchNorm(width))
                if activation == "relu":
                    norm.follow_relu(linear.bias)
            if dropout:
                layers.append(nn.Dropout(dropout))
        if output is not None and hidden:
            layers.append(nn.Linear(hidden[-1], output))
        self.rest: nn.Sequential = Layers(*layers)
        # Fresh embeddings are small beside torch's random biases, which would leave most units on or off in every row:
        # those that are off never learn; of those that are on, a BatchNorm makes the bias's gradient pure rounding.
        for layer in (self.first, *self.rest):
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.rest(self.first(x))
        return result
