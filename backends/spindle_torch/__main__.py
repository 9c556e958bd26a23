"""`python -m spindle_torch PLAN`: one rank, to be started by torchrun (see docs/runtime.md)."""

import sys

from spindle_torch.process import main

if __name__ == "__main__":
    main(sys.argv[1:])
