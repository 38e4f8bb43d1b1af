"""In which precision a step multiplies, and the factor that keeps small float16 gradients from vanishing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from falconet.train.checkpoint import Position
from falconet.train.runtime import Runtime

Precision = Literal["auto", "float32", "bfloat16", "float16"]
_GROW_AFTER = 2000  # good steps, as torch's GradScaler has it
_FIRST = 65536.0
_LEAST = 1.0  # a gradient that is not finite at this factor is so at any


def choose(asked: Precision, runtime: Runtime) -> torch.dtype:
    """The type that matrices are multiplied in, the same on all processes.

    auto: bfloat16 where the hardware of every process multiplies it, else float16 where every process has a GPU with
    units for that (Volta and later), else float32. Weights, losses and sums are float32 in any case.
    """
    if asked != "auto":
        chosen: torch.dtype = getattr(torch, asked)
        return chosen
    able = [float(fast(runtime.device)) for fast in (bfloat16_is_fast, float16_is_fast)]
    bfloat16, float16 = (n == runtime.world for n in runtime.sums(torch.tensor(able)).tolist())
    return torch.bfloat16 if bfloat16 else torch.float16 if float16 else torch.float32


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether the hardware multiplies matrices in bfloat16; where it does not, bfloat16 is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    flags = Path("/proc/cpuinfo")
    if not flags.is_file():
        return False
    words = next((line.split() for line in flags.read_text().splitlines() if line.startswith("flags")), [])
    return bool({"avx512_bf16", "amx_bf16"} & set(words))


def float16_is_fast(device: torch.device) -> bool:
    """Whether the device is a GPU that multiplies matrices in float16."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def first_scale(position: Position, dtype: torch.dtype) -> None:
    """Set the factor where training begins, or goes on in another precision."""
    if dtype != torch.float16:
        position.scale, position.good_steps = None, 0
    elif position.scale is None:
        position.scale = _FIRST


def rescale(position: Position, fine: bool) -> bool:
    """After a float16 step: halve the factor where the gradient was not finite, double it after 2,000 good steps.

    False where a smaller factor would not help. The rule and its numbers are those of torch's GradScaler, whose own
    cannot be used, as it sees no table gradients.
    """
    assert position.scale is not None
    if not fine:
        position.good_steps = 0
        position.scale /= 2
        return position.scale >= _LEAST
    position.good_steps += 1
    if position.good_steps == _GROW_AFTER:
        position.scale, position.good_steps = position.scale * 2, 0
    return True
