"""What other packages recommend or predict, in an environment of their own: falconet is not imported there.

    PYTHON benchmarks/neighbours.py JOB.json

`environment` makes that environment, once. A job is {"name", "config", "data": an .npz, "out": an .npz, "seed"}; the
answer, on the last line, is what it took. The lists are scored by whoever asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGES = ("implicit==0.7.3", "lenskit==2025.8.1", "lightgbm==4.7.0", "numpy==2.4.6", "scipy==1.17.1")
K = 10


def environment(folder: Path) -> tuple[Path | None, str]:
    """The Python of an environment that has `PACKAGES`, made where it is not there; or none, and why.

    LensKit brings torch along, with libraries for GPUs where the registry's build has them: up to 6 GB.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = folder / "packages.txt"
    if ready.is_file() and ready.read_text() == "\n".join(PACKAGES):
        return python, ""
    print(f"installing {', '.join(PACKAGES)} in {folder} …", flush=True)
    try:
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
        subprocess.run(command, check=True, capture_output=True, text=True, env=_plain(), timeout=1800)
    except subprocess.CalledProcessError as error:
        return None, (error.stderr or error.stdout or str(error)).strip().splitlines()[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    ready.write_text("\n".join(PACKAGES))
    return python, ""


def ask(python: Path, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a job took; its answer is in `job["out"]`. Raises RuntimeError with what the other side said last."""
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    done = subprocess.run([python, __file__, path], capture_output=True, text=True, env=_plain(), check=False)
    if done.returncode:
        raise RuntimeError(f"{job['name']}: {(done.stderr or 'no message').strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _plain() -> dict[str, str]:
    """The environment without what leads to our own packages; one thread, whatever library counts them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LK_NUM_THREADS": "1", "TQDM_DISABLE": "1"}


def _implicit(kind: str, matrix: Any, job: dict[str, Any]) -> Any:
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking

    made = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind]
    model = made(**job["config"], num_threads=1, random_state=job["seed"])
    model.fit(matrix, show_progress=False)
    return model


def _top(matrix: Any, model: Any, users: Any) -> Any:
    codes, _ = model.recommend(users, matrix[users], N=K, filter_already_liked_items=True)
    return codes


def _lenskit(kind: str, matrix: Any, job: dict[str, Any]) -> Any:
    import lenskit
    import pandas as pd
    from lenskit.als import ImplicitMFScorer
    from lenskit.data import from_interactions_df
    from lenskit.knn import EASEScorer, ItemKNNScorer, UserKNNScorer
    from lenskit.pipeline import topn_pipeline

    users, items = matrix.nonzero()
    data = from_interactions_df(pd.DataFrame({"user_id": users, "item_id": items}))
    scorers = {"item_knn": ItemKNNScorer, "user_knn": UserKNNScorer, "ease": EASEScorer, "als": ImplicitMFScorer}
    pipeline = topn_pipeline(scorers[kind](**job["config"]), n=K)
    pipeline.train(data, lenskit.training.TrainingOptions(rng=job["seed"]))
    return pipeline


def _lenskit_top(pipeline: Any, users: Any) -> Any:
    import lenskit
    import numpy as np

    codes = np.full((len(users), K), -1)
    for place, user in enumerate(users):
        found = lenskit.recommend(pipeline, int(user), n=K).ids()
        codes[place, : len(found)] = found
    return codes


def _lists(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import scipy.sparse as sp

    with np.load(job["data"]) as data:
        pairs, shape, asked = (data["users"], data["items"]), tuple(data["shape"]), data["asked"]
    matrix = sp.csr_matrix((np.ones(len(pairs[0]), np.float32), pairs), shape=shape)
    package, kind = job["name"].split(".")
    fit: Callable[..., Any] = {"implicit": _implicit, "lenskit": _lenskit}[package]
    start, cpu = time.perf_counter(), time.process_time()
    model = fit(kind, matrix, job)
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    np.savez(job["out"], codes=_lenskit_top(model, asked) if package == "lenskit" else _top(matrix, model, asked))
    return took


def _trees(job: dict[str, Any]) -> dict[str, Any]:
    """LightGBM's probabilities of the rows to predict; which columns are categories stands in the job."""
    import lightgbm
    import numpy as np

    with np.load(job["data"]) as data:
        tables = {name: data[name] for name in data.files}
    rounds = job["config"].pop("rounds")
    settings = {"objective": "binary", "num_threads": 1, "seed": job["seed"], "verbosity": -1, **job["config"]}
    start, cpu = time.perf_counter(), time.process_time()
    train = lightgbm.Dataset(tables["x"], tables["y"], categorical_feature=job["categories"], free_raw_data=False)
    model = lightgbm.train(settings, train, num_boost_round=rounds)
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    np.savez(job["out"], predicted=model.predict(tables["asked"]))
    return took


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    from measured import peak_mb

    job = json.loads(Path(sys.argv[1]).read_text())
    found = (_trees if job["name"] == "lightgbm" else _lists)(job)
    print(json.dumps({**found, "peak_mb": peak_mb()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
