"""The commands behind the figures of docs/secagg.md still play rounds to the exact sum."""

from __future__ import annotations

import pytest

from benchmarks import secagg_cost, secagg_server


@pytest.mark.parametrize("command", [secagg_server, secagg_cost])
def test_a_small_round_is_played_and_reported(command, capsys):
    command.main(["--devices", "40", "--dimension", "7"])
    assert capsys.readouterr().out.startswith("40 devices x 7, 5% lost, degree ")
