"""`turnstile check-config`: mistakes by their place, before anything is applied."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deployments.cli.main import main
from deployments.shipped import REPOSITORY

SERVE = REPOSITORY / "k8s" / "overlays" / "cpu-demo" / "serve.yaml"


def test_a_right_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(SERVE)]) == 0
    assert (
        capsys.readouterr().out
        == f"{SERVE}: keys and values are right (models, files and addresses that they name were not looked at)\n"
    )


def test_each_mistake_is_named_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "serve.yaml"
    wrong.write_text(SERVE.read_text().replace("processes: 1", "process: 1").replace("threads: 1", "threads: many"))
    assert main(["check-config", str(SERVE), str(wrong)]) == 1
    said = capsys.readouterr().err
    assert "unknown key `applications.0.args.compiler.process`" in said
    assert "`applications.0.args.replica.engine.threads`" in said


@pytest.mark.parametrize(("key", "value"), [("store", "redis//x"), ("device", "gpu")])
def test_values_that_the_start_refuses(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(SERVE.read_text())
    arguments = config["applications"][0]["args"]
    (arguments if key == "store" else arguments["replica"]["engine"])[key] = value
    (wrong := tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    assert main(["check-config", str(wrong)]) == 1
    assert f".{key}`: " in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(tmp_path / "absent.yaml")]) == 1
    assert "no such file" in capsys.readouterr().err
