"""The reader alone: `pip install` of the package without extras, in an environment of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm_server import serve_llm
from tests.shards import publish_shard, shard_node, shard_settings

CHECKOUT = Path(__file__).resolve().parents[2]
MAX_INSTALLED_BYTES = 360_000_000
READ = """
import sys
from serving import MemoryReader
memory = MemoryReader.open(sys.argv[1], settings=sys.argv[2])
print(memory.scope("acme/s1").answer("What is the location?").citation)
print([m for m in ("pyspark", "py4j", "pandas", "delta") if m in sys.modules])
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the package and what the reader needs."""
    folder = tmp_path_factory.mktemp("reader")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    made = folder / "venv/bin/python"
    quiet = ["-q", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([made, "-m", "pip", "install", *quiet, str(CHECKOUT)], check=True)
    return made


def test_the_reader_answers_where_neither_pyspark_nor_java_is(python: Path, tmp_path: Path) -> None:
    with serve_llm(dimension=64) as server:
        endpoint = {"provider": "openai", "model": "scripted", "base_url": server.base_url}
        settings = shard_settings(llm=endpoint, embedding={**endpoint, "dimension": 64})
        node = shard_node("acme", "s1", facets={"location": "Turku"}, summary="A seat in Turku.")
        shards = tmp_path / "shards"
        publish_shard(shards, shard_node("acme"), node, settings=settings)
        conf = tmp_path / "reader.toml"
        conf.write_text(
            "".join(f'[[levels]]\nname = "{name}"\n' for name in settings.level_names)
            + "".join(
                f'[{section}]\nprovider = "openai"\nmodel = "scripted"\n'
                f'base_url = "{server.base_url}"\n{more}\n'
                for section, more in (("llm", ""), ("embedding", "dimension = 64"))
            ),
            encoding="utf-8",
        )
        done = subprocess.run(
            [python, "-c", READ, shards, conf],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={"OPENAI_API_KEY": "test", "PATH": ""},
        )

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["('acme/s1',)", "[]"]


def test_what_the_reader_installs_is_small(python: Path) -> None:
    packages = python.parents[1] / "lib"
    without_pip = [
        f for f in packages.rglob("*") if f.is_file() and "site-packages/pip" not in str(f)
    ]

    assert sum(file.stat().st_size for file in without_pip) <= MAX_INSTALLED_BYTES


def test_a_verb_of_the_pipeline_names_the_extra_that_it_needs(python: Path) -> None:
    done = subprocess.run(
        [python, "-m", "hltm_spark.cli", "index", "--root", "unused"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "hltm-spark[spark]" in done.stderr
