"""Train a small network to tell images apart, on one process or on many, with the same numbers.

python examples/image_classifier.py                               digits, made up here
falconet launch -np 4 examples/image_classifier.py --data mnist   the four IDX files of MNIST or Fashion-MNIST
torchrun --nproc-per-node 4 examples/image_classifier.py --data photos   photos/train/CLASS/*.png, photos/test/...
"""

import argparse
import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import falconet as fl
from falconet.metrics.classes import ClassMetrics

parser = argparse.ArgumentParser(description="Train a small network to tell images apart")
parser.add_argument("--data", type=Path, help="A folder of IDX files or of images; else digits are made up")
parser.add_argument("--rows", type=int, help="How many images to train on; else all, or 4,000 made up digits")
parser.add_argument("--batch_size", type=int, default=100, help="Images of a step, of all processes together")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--learning_rate", type=float, default=0.003)
parser.add_argument("--weights", type=Path, help="Start from these: model/model.safetensors of a --dir_out, or a .pt")
parser.add_argument("--freeze", action="store_true", help="Train the last layer alone")
parser.add_argument("--workers", type=int, default=0, help="Processes that read images ahead, for each process")
parser.add_argument("--precision", default="float32", choices=("auto", "float32", "bfloat16"))
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dir_out", type=Path, help="Where to keep the run; a run that is there goes on")

# Rows of 5 bits each: the digits 0 to 9.
FONT = """0e11131519110e 040c040404040e 0e11010204081f 1f02040201110e 02060a121f0202
          1f101e0101110e 0608101e11110e 1f010204080808 0e11110e11110e 0e11110f01020c"""


def made_up(rows: int, seed: int) -> TensorDataset:
    """Digits of 28 x 28 pixels, each moved about and covered with noise."""
    random = np.random.default_rng(seed)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(FONT), np.uint8)[:, None], axis=1)[:, 3:].reshape(10, 7, 5)
    glyphs = bits.repeat(3, axis=1).repeat(3, axis=2).astype(np.float32)
    digits = random.integers(0, 10, rows)
    images = random.normal(0, 0.3, (rows, 1, 28, 28)).astype(np.float32)
    for image, digit, (top, left) in zip(images, digits, random.integers(0, (8, 14), (rows, 2)), strict=True):
        image[0, top : top + 21, left : left + 15] += glyphs[digit]
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(digits))


def idx(path: Path) -> Tensor:
    """The array in an IDX file, the format of MNIST: two zeros, a type, the number of dimensions, their sizes, data."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    zeros, kind, dimensions = struct.unpack(">HBB", data[:4])
    if zeros or kind != 8:
        raise SystemExit(f"{path} is not an IDX file of bytes")
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def mnist(folder: Path, part: str) -> TensorDataset:
    """`train` or `t10k` of a folder with MNIST's four files, packed or not."""
    images, labels = (next(folder.glob(f"{part}-{what}*")) for what in ("images", "labels"))
    return TensorDataset(idx(images).unsqueeze(1) / 255, idx(labels).long())


class Images(Dataset[tuple[Tensor, int]]):
    """FOLDER/CLASS/*.npy, .pgm or, with Pillow, .png and .jpg, all of one size; classes are numbered by name."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [(path, i) for i, name in enumerate(self.classes) for path in sorted((folder / name).iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        path, label = self.files[i]
        pixels = torch.from_numpy(read_image(path)).float() / 255
        return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.movedim(-1, 0), label


def read_image(path: Path) -> np.ndarray:
    """Bytes: [height, width], or [height, width, 3]."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".pgm":
        kind, width, height, most, pixels = path.read_bytes().split(maxsplit=4)
        if (kind, most) != (b"P5", b"255"):
            raise SystemExit(f"{path} is not a binary PGM of bytes without comments")
        return np.frombuffer(pixels[-int(width) * int(height) :], np.uint8).reshape(int(height), int(width)).copy()
    from PIL import Image  # only where there are such files

    return np.array(Image.open(path))


class Network(nn.Module):
    """Two convolutions and a layer, for images whose sides are multiples of 4."""

    def __init__(self, image: Tensor, classes: int) -> None:
        super().__init__()
        channels, height, width = image.shape
        # No biases before BatchNorm, which takes them out again: their gradient would be rounding alone.
        self.backbone = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16 * (height // 4) * (width // 4), classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


def main() -> None:
    args = parser.parse_args()
    with fl.Runtime.start() as runtime:
        if args.data is None:
            train, test, classes = made_up(args.rows or 4000, args.seed), made_up(1001, args.seed + 1), 10
        elif (args.data / "train").is_dir():
            train, test = Images(args.data / "train"), Images(args.data / "test")
            classes = len(train.classes)
        else:
            train, test = mnist(args.data, "train"), mnist(args.data, "t10k")
            classes = int(train.tensors[1].max()) + 1
        # Every tenth training image tells which epoch was best. Each process takes its share of each batch.
        rows = range(min(args.rows or len(train), len(train)))
        learn = Subset(train, [i for i in rows if i % 10])
        loader = fl.MapLoader(learn, batch_size=args.batch_size, shuffle=True, seed=args.seed, workers=args.workers)
        valid, test = (
            fl.MapLoader(data, batch_size=1000, workers=args.workers)
            for data in (Subset(train, [i for i in rows if i % 10 == 0]), test)
        )

        torch.manual_seed(args.seed)
        network = Network(train[0][0], classes)
        if args.weights:
            fl.import_weights(network, args.weights)
        if args.freeze:
            fl.nn.freeze(network.backbone)
        if runtime.is_main:
            trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
            print(f"trainable parameters: {trained:,} of {sum(p.numel() for p in network.parameters()):,}")

        model = fl.nn.Supervised(network, nn.CrossEntropyLoss(reduction="none"))
        config = fl.TrainConfig(
            epochs=args.epochs, learning_rate=args.learning_rate, precision=args.precision, seed=args.seed
        )
        trainer = fl.Trainer(config, args.dir_out, runtime)
        result = trainer.fit(model, loader, valid, resume="auto" if args.dir_out else "never", metrics=ClassMetrics())
        figures = trainer.evaluate(model, test, ClassMetrics())

        if runtime.is_main:
            for line in result.history:
                held = f"valid loss {line['valid']['loss']:.4f}, accuracy {line['valid']['accuracy']:.4f}"
                print(f"epoch {line['epoch']}: loss {line['loss']:.4f}, {held}")
            print(f"test: loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.4f} of {test.rows:,} images")
            print("Done!")


if __name__ == "__main__":
    main()
