"""Train a model on one GPU, many GPUs, or a CPU: NVTabular's multi-GPU MovieLens script, in falconet.

python examples/movielens_multi_gpu.py --dir_in work
falconet launch -np 2 examples/movielens_multi_gpu.py --dir_in work --batch_size 16384
"""

import argparse
from pathlib import Path
from time import time

import torch

import falconet as fl

parser = argparse.ArgumentParser(description="Train a multi-gpu model with Torch")
parser.add_argument("--dir_in", type=Path, default=Path("data"), help="Input directory")
parser.add_argument("--batch_size", type=int, default=16384, help="Batch size, of all processes together")
parser.add_argument("--cats", nargs="+", help="Categorical columns")
parser.add_argument("--cats_mh", nargs="+", help="Categorical multihot columns")
parser.add_argument("--conts", nargs="+", help="Continuous columns")
parser.add_argument("--labels", nargs="+", help="Label columns")
parser.add_argument("--epochs", type=int, default=1, help="Training epochs")
parser.add_argument("--seed", type=int, default=0, help="Order of the rows and start of the weights")
parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"), help="Of the dense layers")
parser.add_argument("--dir_out", type=Path, help="Where to keep the run; a run that is there is resumed")


def main() -> None:
    args = parser.parse_args()
    base = args.dir_in / "features" if (args.dir_in / "features/train").is_dir() else args.dir_in
    columns = [name for names in (args.cats, args.cats_mh, args.conts) for name in names or []] or None

    with fl.Runtime.start() as runtime:
        train_loader = fl.Loader(
            base / "train", batch_size=args.batch_size, shuffle=True, seed=args.seed, columns=columns
        )
        held_out = next((base / name for name in ("valid", "test") if any((base / name).glob("*.parquet"))), None)
        valid_loader = held_out and fl.Loader(held_out, batch_size=args.batch_size, columns=columns)

        torch.manual_seed(args.seed)
        model = fl.models.MLP.from_schema(
            train_loader.schema,
            fl.models.MLP.Config(
                hidden=(128, 128, 128), dropout=0.0, loss="mse", target=args.labels[0] if args.labels else None
            ),
        )
        config = fl.TrainConfig(
            epochs=args.epochs, optimizer="adam", learning_rate=0.01, precision=args.precision, seed=args.seed
        )
        trainer = fl.Trainer(config, folder=args.dir_out, runtime=runtime)

        start = time()
        resume = "auto" if args.dir_out else "never"
        result = trainer.fit(model, train_loader, valid_loader or None, resume=resume)
        t_final = time() - start

        if runtime.is_main:
            for epoch, figures in enumerate(result.history):
                held = f" Valid loss: {figures['valid']['loss']:.4f}." if "valid" in figures else ""
                print(f"Epoch {epoch:02d}. Train loss: {figures['loss']:.4f}.{held}")
            print(
                f"run_time: {t_final:.2f} - rows: {result.rows} - epochs: {result.epochs} - "
                f"rows per second: {result.rows / t_final:.0f}"
            )
            print("Training complete")


if __name__ == "__main__":
    main()
