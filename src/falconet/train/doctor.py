"""What a machine has for training on many processes, how fast they talk, and what one would change."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from falconet.errors import DataError, FalconetError
from falconet.io.artifact import falconet_version
from falconet.train.launch import launch
from falconet.train.place import read_meeting, read_place
from falconet.train.precision import bfloat16_is_fast
from falconet.train.runtime import Runtime, built_for
from falconet.train.team import threads_each

MEGABYTES = 32  # of the timed all-reduce
Facts = dict[str, Any]
"""Plain values for JSON."""


def examine(nproc: int, folder: str | Path = ".") -> Facts:
    """The facts, and under `advice` what to change. `nproc` processes, if more than one, time an all-reduce.

    `folder`: the disk that runs will be written to.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no folder `{folder}`", hint="where runs will be kept")
    facts: Facts = {
        "versions": _versions(),
        "cpu": _cpu(),
        "gpus": _gpus(),
        "backend": "nccl" if torch.cuda.is_available() else "gloo",
        "launcher": _launcher(os.environ),
        "host": _host(),
        "disk": _disk(folder),
        "clock": {"utc": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), "ahead_of_disk_s": _ahead_of(folder)},
        "all_reduce": None if nproc < 2 else _all_reduce(nproc),
    }
    return facts | {"advice": advice(facts, os.environ, nproc)}


def advice(facts: Facts, env: Mapping[str, str], nproc: int) -> list[str]:
    """What one would change, most urgent first."""
    found = []
    if error := facts["launcher"].get("error"):
        found.append(f"The launcher's variables are wrong: {error}")
    if facts["versions"]["cuda"] is None and facts["gpus"]["driver"]:
        found.append("There is an NVIDIA driver, but this torch is built for the CPU alone: install a CUDA build.")
    for gpu in facts["gpus"]["found"]:
        if not gpu["usable"]:
            codes = ", ".join(facts["gpus"]["built_for"])
            found.append(
                f"GPU {gpu['index']} ({gpu['name']}, capability {gpu['capability']}) is not used: this torch has code "
                f"for {codes}. Install a build for it, or train on the CPU."
            )
    host = facts["host"]
    if not host["addresses"]:
        found.append(f"The name of this machine, {host['name']}, has no address: give it one, for several machines.")
    elif all(address.startswith("127.") or address == "::1" for address in host["addresses"]):
        found.append(
            f"The name of this machine, {host['name']}, is a loopback address. For several machines set "
            f"GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the network between them: {_names(host['interfaces'])}."
            " `Runtime.start()` does it for gloo on Linux."
        )
    if facts["launcher"].get("port_free") is False:
        found.append(f"Port {facts['launcher']['port']}, where this job meets, is taken: set MASTER_PORT to another.")
    if facts["disk"]["free_gb"] < 5:
        found.append(f"{facts['disk']['free_gb']} GB are left on the disk of `{facts['disk']['folder']}`: make room.")
    ahead = facts["clock"]["ahead_of_disk_s"]
    if abs(ahead) > 2:
        found.append(f"The clock is {ahead} s ahead of the disk's: have the machines' clocks set (NTP).")
    threads, cores = env.get("OMP_NUM_THREADS", ""), facts["cpu"]["cores"]
    if threads.isdigit() and int(threads) * nproc > max(cores, nproc):
        found.append(
            f"OMP_NUM_THREADS={threads} makes {int(threads) * nproc} threads on {cores} cores: unset it; "
            f"`falconet launch -np {nproc}` gives each process {threads_each(nproc)}."
        )
    if not facts["gpus"]["found"] and nproc > cores:
        found.append(f"{nproc} processes share {cores} cores: -np {cores} is as fast or faster.")
    return found


def _versions() -> Facts:
    return {
        "falconet": falconet_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "system": platform.platform(),
    }


def _cpu() -> Facts:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = told.get("flags", "").split()
    return {
        "name": told.get("model name") or platform.processor() or platform.machine(),
        "cores": threads_each(1),
        "avx512": "avx512f" in flags,
        "bf16": bfloat16_is_fast(torch.device("cpu")),
    }


def _gpus() -> Facts:
    found = [_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    driver = Path("/proc/driver/nvidia/version").is_file() or shutil.which("nvidia-smi") is not None
    return {"driver": driver, "built_for": torch.cuda.get_arch_list(), "found": found}


def _gpu(index: int) -> Facts:
    capability = torch.cuda.get_device_capability(index)
    usable, why = built_for(capability, torch.cuda.get_arch_list()), None
    if usable:
        try:
            torch.ones(8, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            usable, why = False, str(error).splitlines()[0]
    return {
        "index": index,
        "name": torch.cuda.get_device_name(index),
        "capability": f"{capability[0]}.{capability[1]}",
        "memory_gb": round(torch.cuda.get_device_properties(index).total_memory / 2**30, 1),
        "usable": usable,
        "error": why,
    }


def _launcher(env: Mapping[str, str]) -> Facts:
    """Who started this process, and where its job would meet."""
    try:
        place = read_place(env)
        facts: Facts = {"name": place.launcher, "rank": place.rank, "world": place.world}
        if place.world > 1:
            meeting = read_meeting(env, place)
            facts |= {"address": meeting.address, "port": meeting.port, "port_free": _is_free(meeting.port)}
    except FalconetError as error:
        return {"error": str(error)}
    return facts


def _is_free(port: int) -> bool:
    with socket.socket() as asking:
        try:
            asking.bind(("", port))
        except OSError:
            return False
    return True


def _host() -> Facts:
    name = socket.gethostname()
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    except OSError:
        addresses = []
    interfaces = [interface for _, interface in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    return {"name": name, "addresses": addresses, "interfaces": interfaces}


def _disk(folder: Path) -> Facts:
    usage = shutil.disk_usage(folder)
    return {"folder": str(folder), "free_gb": round(usage.free / 2**30, 1), "total_gb": round(usage.total / 2**30, 1)}


def _ahead_of(folder: Path) -> float:
    """Seconds that this clock is ahead of that of the disk, which may be another machine's."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"now")
        file.flush()
        return round(time.time() - os.fstat(file.fileno()).st_mtime, 1)


def _all_reduce(nproc: int) -> Facts:
    seconds = launch(_reduce_times, nproc)
    middle = statistics.median(seconds)
    return {
        "processes": nproc,
        "megabytes": MEGABYTES,
        "ms": round(middle * 1e3, 1),
        "gb_per_s": round(MEGABYTES / 1e3 / middle, 2),
    }


def _reduce_times() -> list[float]:
    """Seconds of some sums of 32 MB over all processes of the group."""
    with Runtime.start() as runtime:
        values = torch.ones(MEGABYTES * 1_000_000 // 4, device=runtime.device)
        times = []
        for _ in range(6):
            runtime.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            values.sum().item()  # waits for the device
            times.append(time.perf_counter() - start)
    return times[1:]


def _names(interfaces: list[str]) -> str:
    return ", ".join(name for name in interfaces if name != "lo") or "none is up"
