"""`falconet models`: the list, the settings of one, the same as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from falconet.cli.main import app
from falconet.config import from_plain
from falconet.errors import ConfigError
from falconet.models import MODELS, describe


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_every_model_has_a_line_with_its_kind() -> None:
    lines = printed().splitlines()
    assert [line.split()[0] for line in lines] == list(MODELS)
    by_name = {line.split()[0]: line for line in lines}
    assert "ranker of several targets  Experts that all tasks share" in by_name["MMoE"]
    assert "ranker                     Products of every two fields" in by_name["DLRM"]
    assert "retriever " in by_name["TwoTower"]
    assert max(map(len, lines)) < 170


def test_one_model_is_shown_with_its_settings() -> None:
    text = printed("DCN")
    assert text.startswith("DCN, a ranker: Explicit crosses of the inputs")
    assert 'structure         "stacked"' in text
    assert "hidden            [128, 64]" in text
    assert "target            (not set)" in text


@pytest.mark.parametrize("name", MODELS)
def test_the_settings_in_json_are_the_defaults(name: str) -> None:
    told = json.loads(printed(name, "--json"))
    kind = MODELS[name].Config
    settings = {setting: one["default"] for setting, one in told["settings"].items()}
    assert from_plain(kind, settings) == kind()


def test_all_models_in_json_are_what_the_library_says() -> None:
    assert json.loads(printed("--json")) == [json.loads(json.dumps(describe(name))) for name in MODELS]


def test_a_name_that_no_model_has() -> None:
    with pytest.raises(ConfigError, match="unknown model `DLMR`\n\nhint: did you mean `DLRM`"):
        CliRunner().invoke(app, ["models", "DLMR"], catch_exceptions=False)
