"""Fit a line to points, on one process or on many, with the same numbers.

python examples/linear_regression.py
falconet launch -np 4 examples/linear_regression.py
torchrun --nproc-per-node 4 examples/linear_regression.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import falconet as fl

parser = argparse.ArgumentParser(description="Fit a line to points")
parser.add_argument("--rows", type=int, default=2048, help="How many points")
parser.add_argument("--batch_size", type=int, default=128, help="Points of a step, of all processes together")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--learning_rate", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dir_out", help="Where to keep the run; a run that is there goes on")


def points(rows: int, seed: int) -> TensorDataset:
    """Points near the line y = 3x + 2."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=random) * 2 - 1
    return TensorDataset(x, 3 * x + 2 + 0.1 * torch.randn(rows, 1, generator=random))


def main() -> None:
    args = parser.parse_args()
    with fl.Runtime.start() as runtime:
        train = fl.MapLoader(points(args.rows, args.seed), batch_size=args.batch_size, shuffle=True, seed=args.seed)
        valid = fl.MapLoader(points(1000, args.seed + 1), batch_size=args.batch_size)

        torch.manual_seed(args.seed)
        line = nn.Linear(1, 1)
        model = fl.nn.Supervised(line, nn.MSELoss(reduction="none"))
        config = fl.TrainConfig(
            epochs=args.epochs, optimizer="sgd", learning_rate=args.learning_rate, precision="float32", seed=args.seed
        )
        trainer = fl.Trainer(config, args.dir_out, runtime)
        result = trainer.fit(model, train, valid, resume="auto" if args.dir_out else "never")

        if runtime.is_main:
            for figures in result.history:
                print(f"epoch {figures['epoch']}: loss {figures['loss']:.5f}, valid {figures['valid']['loss']:.5f}")
            print(f"y = {line.weight.item():.4f} x + {line.bias.item():.4f}")


if __name__ == "__main__":
    main()
