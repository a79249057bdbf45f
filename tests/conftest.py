"""A skipped test is a failure where HLTM_NO_SKIPS is set, as `make test` and CI do."""

import os

import pytest
from hypothesis import settings

collect_ignore = ["llm"]  # needs a model server of its own: `make test-llm` names the folder

settings.register_profile("hltm", deadline=None)  # a loaded machine is no fault of the code
settings.load_profile("hltm")


# before Spark starts: its Python workers inherit them
os.environ.update(
    AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true"
)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a run with skipped tests into a failed one."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("HLTM_NO_SKIPS"):
        return
    if skipped := reporter.stats.get("skipped", []):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"{len(skipped)} tests were skipped; none may be", red=True)
