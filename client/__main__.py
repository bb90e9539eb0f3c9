import os
import sys

# gRPC writes its own log lines to standard error; what matters of them is in our errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from client.cli import main

sys.exit(main())
