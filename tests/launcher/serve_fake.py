"""`serve` over the stand-in server, with short limits: `serve_fake.py BINARY OPTIONS...`."""

import argparse
import sys
from pathlib import Path

from launcher import supervisor
from launcher.diagnosis import Backoff
from launcher.errors import LauncherError
from launcher.serve import serve
from launcher.server import Installation
from launcher.settings import add_options, resolve

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(sys.argv[2:])
    supervisor.find_installation = lambda: Installation(Path(sys.argv[1]), Path("/none"), None, (), None)
    supervisor.Backoff = lambda: Backoff(first=0.05, longest=0.4)
    supervisor.EXIT_TIMEOUT_SECONDS = -1.0  # SIGKILL 2 s after SIGTERM
    supervisor.TICK_SECONDS = 0.05
    supervisor.PING_SECONDS = 0.1
    supervisor.PING_TIMEOUT = 0.5
    try:
        sys.exit(serve(resolve(options), None))
    except LauncherError as error:
        sys.exit(str(error))
