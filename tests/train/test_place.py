"""Where the processes of a job meet, by the variables of their launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from falconet.errors import ConfigError
from falconet.train.nodes import find_nodes
from falconet.train.place import FIRST_PORT, PORTS, Place, first_host, port_of, read_meeting, read_place

SRUN = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NODELIST": "c[401-402]",
    "SLURM_JOB_NODELIST": "c[399-402]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "1309016065", "PMIX_RANK": "1",
}  # fmt: skip
ONE_PER_NODE = SRUN | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (SRUN, Place("SLURM", 2, 3, 0, 1)),
        (SRUN | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}, Place("SLURM", 1, 3, 1, 2)),
        (MPIRUN, Place("Open MPI", 1, 2, 1, 2)),
        # `srun --mpi=pmi2`: the local numbers are SLURM's alone.
        (SRUN | {"PMI_RANK": "2", "PMI_SIZE": "3"}, Place("MPI", 2, 3, 0, 1)),
        # `srun --gpus-per-task=1`: each task sees its own GPU, as number 0.
        (SRUN | {"SLURM_GPUS_PER_TASK": "1"}, Place("SLURM", 2, 3, 0, 1, own_gpu=True)),
    ],
)
def test_srun_and_mpirun_are_understood(env: dict[str, str], place: Place) -> None:
    assert read_place(env) == place


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (MPIRUN | {"PMIX_RANK": "0"}, r"PMIX_RANK=0 and OMPI_COMM_WORLD_RANK=1 \(Open MPI\) contradict each other"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK is set, but nothing says how many processes there are"),
        (SRUN | {"SLURM_LOCALID": "4"}, "SLURM_LOCALID=4 does not fit SLURM_NTASKS_PER_NODE=1"),
        (SRUN | {"RANK": "0", "WORLD_SIZE": "3"}, r"RANK=0 of WORLD_SIZE=3 \(torchrun\), SLURM_PROCID=2 of"),
    ],
)
def test_contradictions_name_both_variables(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_place(env)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("c401", "c401"),
        ("c[401-404,409]", "c401"),
        ("login,c[1-2]", "login"),
        ("c[401-402]n[03-04]-ib,d7", "c401n03-ib"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_job_meets_on_its_first_node_at_its_own_port(tmp_path: Path) -> None:
    meeting = read_meeting(SRUN, read_place(SRUN))
    assert (meeting.address, meeting.port) == ("c401", port_of("SLURM 4711.0.0"))
    assert port_of("SLURM 4711.0.0") == 28088
    assert len(meeting.ports) == 16
    other = read_meeting(SRUN | {"SLURM_STEP_ID": "1"}, read_place(SRUN))
    assert other.port != meeting.port
    assert all(FIRST_PORT <= port_of(str(i)) < FIRST_PORT + PORTS <= 32768 for i in range(1000))
    (tmp_path / "nodes").write_text("n17\nn17\nn18\n")
    pbs = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "9.head"}
    assert read_meeting(pbs, Place("MPI", 0, 4, 0, 2)).address == "n17"


def test_what_the_user_says_rules() -> None:
    meeting = read_meeting(SRUN | {"MASTER_ADDR": "gate", "MASTER_PORT": "29500"}, read_place(SRUN))
    assert (meeting.address, list(meeting.ports), meeting.job) == ("gate", [29500], None)


def test_one_machine_needs_no_address() -> None:
    meeting = read_meeting(MPIRUN, read_place(MPIRUN))
    assert (meeting.address, meeting.job) == ("127.0.0.1", "mpirun 1309016065")
    hydra = Place("MPI", 0, 2, 0, 2)
    assert read_meeting({}, hydra).job == f"parent {os.getppid()}"


@pytest.mark.parametrize(
    ("env", "place", "message"),
    [
        ({}, Place("MPI", 0, 4, 0, 2), r"4 processes on several machines \(MPI\), but MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "a"}, Place("MPI", 0, 4, 0, 2), "but MASTER_PORT is not set"),
        ({}, Place("torchrun", 0, 2, 0, 2), "RANK and WORLD_SIZE are set, but MASTER_PORT is not"),
        ({"MASTER_PORT": "x"}, Place("MPI", 0, 2, 0, 2), "MASTER_PORT='x' is not a number"),
    ],
)
def test_a_job_that_does_not_say_where_to_meet_is_told(env: dict[str, str], place: Place, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_meeting(env, place)


def test_machines_of_a_launch_as_given_and_as_srun_says() -> None:
    given = find_nodes({}, 2, 1, "first", 29400)
    assert (given.count, given.rank, given.meeting.address, given.meeting.port) == (2, 1, "first", 29400)
    found = find_nodes(ONE_PER_NODE)
    assert (found.count, found.rank, found.meeting.address) == (2, 1, "c401")
    assert find_nodes({}).count == find_nodes({}, 1).count == find_nodes(ONE_PER_NODE, 1).count == 1


@pytest.mark.parametrize(
    ("env", "count", "rank", "message"),
    [
        (SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}, None, None, "SLURM started 2 launchers on one machine"),
        ({}, 2, None, "--nnodes 2 without --node-rank"),
        ({}, 2, 2, "--node-rank 2 does not fit --nnodes 2"),
        ({}, 2, 0, "MASTER_ADDR is not set"),
    ],
)
def test_machines_that_do_not_fit_are_refused(
    env: dict[str, str], count: int | None, rank: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        find_nodes(env, count, rank)
