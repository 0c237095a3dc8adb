"""Read an owner's rows in a process that ends when they are read.

Reading a table takes pyarrow, and pandas where it is installed: 80 MB that a guard would keep for
as long as it runs. The process gets a schema and a path on its standard input, and writes the rows
to its standard output. It runs under the owner's account, as the guard does.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.data.federation import Federation
from fedveil_federation.deploy.schemas import rows_of
from fedveil_federation.deploy.state_dirs import SiteHome

_PROGRAM = ["-P", "-m", "fedveil_federation.deploy.reading"]


def read_apart(home: SiteHome) -> Federation:
    """Return a site's rows, without keeping in memory what it takes to read them.

    Args:
        home: the site's.

    Returns:
        The same as `SiteHome.rows`.

    Raises:
        ConfigError: the rows do not fit the schema, or the process that reads them was ended.
    """
    asked = home.agreement.schema, home.data, home.agreement.holdout, home.person_column
    command, pipe = [sys.executable, *_PROGRAM], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as reading:
        if reading.stdin is None or reading.stdout is None:
            raise ConfigError(f"data {home.data}: no pipe to the process that reads it")
        try:
            with reading.stdin as request:
                pickle.dump(asked, request)
            found = pickle.load(reading.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise ConfigError(
                f"data {home.data}: the process that reads it ended before it was done. Is there "
                "enough memory?"
            ) from None
    if isinstance(found, Federation):
        return found
    raise ConfigError(str(found))


def _read() -> None:
    answer, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever a library prints is no answer
    try:
        found: Federation | str = rows_of(*pickle.load(sys.stdin.buffer))
    except (FedveilError, OSError) as error:
        found = str(error)
    pickle.dump(found, answer, protocol=5)  # arrays are read without a copy


if __name__ == "__main__":
    _read()
