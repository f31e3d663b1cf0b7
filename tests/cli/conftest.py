# SPDX-License-Identifier: Apache-2.0
"""The command, run in this process."""

from __future__ import annotations

import pytest

from ckptfmt.cli import main
from cli.commands import Command, Ran


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process."""

    def run(*arguments: object) -> Ran:
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return run
