"""Where a process stands, by the variables of its launcher."""

from __future__ import annotations

import pytest
import torch

from falconet.errors import ConfigError, DataError
from falconet.train.place import ALONE, Place, read_place
from falconet.train.runtime import Runtime, built_for

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4(x2)", "SLURM_STEP_ID": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, ALONE),
        (TORCHRUN, Place("torchrun", 3, 4, 1, 2)),
        (OMPI, Place("Open MPI", 1, 2, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Place("MPI", 1, 2, 0, 1)),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, Place("MVAPICH2", 0, 2, 0, 1)),
        (SLURM, Place("SLURM", 5, 8, 1, 4)),
    ],
)
def test_every_launcher_is_understood(env: dict[str, str], place: Place) -> None:
    assert read_place(env) == place


def test_a_batch_script_outside_srun_stands_alone() -> None:
    assert read_place({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) == ALONE


def test_torchrun_under_srun_rules() -> None:
    one_per_node = {**SLURM, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "TORCHELASTIC_RUN_ID": "x"}
    assert read_place({**TORCHRUN, **one_per_node}).launcher == "torchrun"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {**TORCHRUN, **OMPI, "OMPI_COMM_WORLD_SIZE": "3"},
            r"RANK=3 of WORLD_SIZE=4 \(torchrun\), OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=3 \(Open MPI\)",
        ),
        (
            {**OMPI, "PMI_RANK": "0", "PMI_SIZE": "2"},
            r"OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2 \(Open MPI\), PMI_RANK=0 of PMI_SIZE=2",
        ),
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 does not fit WORLD_SIZE=4"),
        ({"RANK": "", "WORLD_SIZE": "4"}, "RANK='' is not a number"),
        ({**TORCHRUN, "LOCAL_RANK": "0"}, "RANK=3 and LOCAL_RANK=0 contradict each other"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_place(env)


def test_alone_everything_is_local() -> None:
    with Runtime.start() as runtime:
        assert (runtime.rank, runtime.world, runtime.is_main, Runtime.peek()) == (0, 1, True, (0, 1))
        assert runtime.sums(torch.tensor([2.0])).tolist() == [2.0]
        assert runtime.broadcast({"a": 1}) == {"a": 1}
        with runtime.main_first():
            pass
        with pytest.raises(DataError, match="no file"):
            runtime.on_main(_fails)


def _fails() -> None:
    raise DataError("no file")


@pytest.mark.parametrize(
    ("capability", "architectures", "usable"),
    [
        ((9, 0), ["sm_80", "sm_90", "compute_90"], True),
        ((8, 6), ["sm_80", "sm_90"], True),
        ((5, 2), ["sm_75", "sm_80"], False),
        ((12, 0), ["sm_90a", "compute_90"], True),
        ((12, 0), ["sm_90a"], False),
    ],
)
def test_a_gpu_that_torch_was_not_built_for_is_seen(
    capability: tuple[int, int], architectures: list[str], usable: bool
) -> None:
    assert built_for(capability, architectures) is usable


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="device must be cpu or cuda, not 'tpu'"):
        Runtime.start(device="tpu")
